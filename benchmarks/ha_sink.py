"""A slave that stores nothing: it reads the log of a master and acknowledges all of it.

    python benchmarks/ha_sink.py HA_PORT

It stands for a slave on another machine: it takes next to no CPU from the master on this one. It
reads and reports as often as our slaves do.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Final

_HEAD: Final = struct.Struct(">qi")
_REPORT: Final = struct.Struct(">q")
_READ_BYTES: Final = 1024 * 1024
_WAKE_BYTES_MAX: Final = 256 * 1024


def main() -> None:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(_REPORT.pack(0))
        print("connected", flush=True)
        buffer = bytearray(_READ_BYTES)
        view = memoryview(buffer)
        held = left = position = 0
        wake_bytes = 1
        while got := link.recv_into(view[held:]):
            at, end = 0, held + got
            while at < end:
                if left:
                    size = min(left, end - at)
                    left -= size
                    position += size
                    at += size
                elif end - at >= _HEAD.size:
                    position, left = _HEAD.unpack_from(buffer, at)
                    at += _HEAD.size
                else:
                    break
            held = end - at
            view[:held] = bytes(view[at:end])
            link.sendall(_REPORT.pack(position))
            if wake_bytes != (wake_bytes := min(left, _WAKE_BYTES_MAX) or 1):
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)


if __name__ == "__main__":
    main()

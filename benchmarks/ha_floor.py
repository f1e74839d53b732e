"""The least that a master can spend on a slave: it sends a file's bytes, and does nothing else.

    python benchmarks/ha_floor.py FILE

Prints the port for one slave (``ha_sink``). For each line "COUNT SECONDS" of its input, it sends
frames for so many messages, evenly over so many seconds, and prints its CPU microseconds per
message. Frames have the size that a master's have; so whatever a master spends beyond this figure
is its own, and whatever is in it belongs to the kernel and the network of this machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import time
from typing import Final

from rocketpost.server.replication.slave_link import LINGER_BYTES
from rocketpost.transport.same_host import put_pace_off

FILE_BYTES: Final = 64 * 1024 * 1024
RECORD_BYTES: Final = 1024 + 170
"""About the size of a record with a body of 1 KB."""
_HEAD: Final = struct.Struct(">qi")


class Floor:
    """A stream of frames to one slave."""

    def __init__(self, link: socket.socket, file: int) -> None:
        self._link = link
        self._file = file
        self._position = 0

    def send_frame(self) -> None:
        """Send a frame, and read the reports that have come meanwhile."""
        self._link.send(_HEAD.pack(self._position, LINGER_BYTES), socket.MSG_MORE)
        at = self._position % FILE_BYTES
        end = at + LINGER_BYTES
        while at < end:
            at += os.sendfile(self._link.fileno(), self._file, at, end - at)
        self._position += LINGER_BYTES
        with contextlib.suppress(BlockingIOError):
            self._link.recv(65536, socket.MSG_DONTWAIT)

    def send(self, count: int, seconds: float) -> float:
        """Send the frames of ``count`` messages; return the CPU seconds that it took."""
        frames = max(1, round(count * RECORD_BYTES / LINGER_BYTES))
        spent, started = 0.0, time.perf_counter()
        for number in range(frames):
            time.sleep(max(0.0, started + seconds * number / frames - time.perf_counter()))
            before = time.process_time()
            self.send_frame()
            spent += time.process_time() - before
        return spent * count / (frames * LINGER_BYTES / RECORD_BYTES)


def main() -> None:
    file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    for at in range(0, FILE_BYTES, 1 << 20):
        os.pwrite(file, bytes(1 << 20), at)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        put_pace_off(listening)
        print(listening.getsockname()[1], flush=True)
        link, _ = listening.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    floor = Floor(link, file)
    for line in sys.stdin:
        count, seconds = line.split()
        print(floor.send(int(count), float(seconds)) / int(count) * 1e6, flush=True)


if __name__ == "__main__":
    main()

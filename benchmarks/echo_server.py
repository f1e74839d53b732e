"""The yardstick: cut frames, give each a fixed reply, one write per wake-up, on the same loop."""

from __future__ import annotations

import asyncio
import struct
import sys

REPLY_BODY = (
    b'{"code":0,"extFields":{"msgId":"7F00000100002A9F0000000000000000","queueId":"0",'
    b'"queueOffset":"0","transactionId":"7F00000100001B6D3C0D0000000000AB",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"PYTHON","opaque":0,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
REPLY = struct.pack(">iI", 4 + len(REPLY_BODY), len(REPLY_BODY)) + REPLY_BODY


class Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        frames = []
        at, size = 0, len(data)
        while size - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > size:
                break
            frames.append(data[at + 4 : end])
            at = end
        self._rest = data[at:]
        if frames:
            self._transport.write(b"".join([REPLY for _ in frames]))  # type: ignore[attr-defined]


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(f"ready {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    if "--asyncio" in sys.argv:
        asyncio.run(main())
    else:
        import uvloop

        uvloop.run(main())

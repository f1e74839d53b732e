"""A gRPC service that does nothing: the floor for what calls to the gRPC port cost.

Prints ``port N``, then answers until it is killed. ``Send`` answers a request with a few bytes, as
SendMessage and AckMessage do. ``Receive`` answers with as many messages of 1 KB as the request has
bytes, as ReceiveMessage does.
"""

from __future__ import annotations

import asyncio

import grpc
import uvloop

SERVICE = "echo.Echo"
ANSWER = b"a" * 80
MESSAGE = b"m" * 1400


async def send(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
    return ANSWER


async def receive(data: bytes, context: grpc.aio.ServicerContext) -> None:
    for _ in data:
        await context.write(MESSAGE)


async def main() -> None:
    server = grpc.aio.server()
    methods = {
        "Send": grpc.unary_unary_rpc_method_handler(send),
        "Receive": grpc.unary_stream_rpc_method_handler(receive),
    }
    handler = grpc.method_handlers_generic_handler(SERVICE, methods)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print("port", port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())

"""Producers and consumers of the gRPC port that live through kills, and the judgement of them.

Each message is sent once, with an id of its own: whether one that was not acknowledged is stored is
not known. Consumers acknowledge what they receive. Promises:

- A message whose send was acknowledged is delivered.
- A message whose receipt was acknowledged is not delivered by a call that began after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import grpc

from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import Code
from rocketpost.testing.ledger import PromiseBroken
from rocketpost.testing.proxy.client import Client, message

_PAUSE_SECONDS: Final = 0.05
_INVISIBLE_SECONDS: Final = 10
"""The shortest time that the proxy allows."""


class GrpcLoad:
    """Some producers and consumers of one topic. Belongs to the event loop.

    Args:
        port: The gRPC port.
        topic: The topic.
        group: The consumers' group.
    """

    def __init__(self, port: int, *, topic: str, group: str) -> None:
        self._port = port
        self._topic = topic
        self._group = group
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self.sent: set[str] = set()
        """Ids of messages whose send was acknowledged."""
        self.seen: set[str] = set()
        """Ids of messages that came. If the answer to an acknowledgement is lost, one may not come
        again."""
        self.done: dict[str, float] = {}
        """Ids of messages whose receipt was acknowledged, and when."""
        self.again: list[str] = []
        """Ids of messages that came again after that."""
        self.failures = 0
        """Number of calls that failed."""

    @contextlib.asynccontextmanager
    async def running(self, *, producers: int, consumers: int) -> AsyncIterator[None]:
        """Let producers and consumers work meanwhile."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._repeat(self._produce)) for _ in range(producers)]
            tasks += [group.create_task(self._repeat(self._consume)) for _ in range(consumers)]
            yield
            for task in tasks:
                task.cancel()

    async def drain(self, seconds: float) -> None:
        """Consume until every acknowledged message has come, or the time is over.

        After that, consume for as long as receipts that were forgotten would take to come again.
        """
        end = self._loop.time() + seconds
        while self.sent - self.seen and self._loop.time() < end:
            await self._once(self._consume_some)
        end = self._loop.time() + 1.5 * _INVISIBLE_SECONDS
        while self._loop.time() < end:
            await self._once(self._consume_some)

    async def _consume_some(self, client: Client) -> None:
        for _ in range(10):
            await self._consume(client)
        raise _EndedError

    def judge(self) -> None:
        """Check the promises.

        Raises:
            PromiseBroken: One was not kept.
        """
        lost = self.sent - self.seen
        if lost:
            raise PromiseBroken(f"{len(lost)} acknowledged messages did not come: {min(lost)}")
        if self.again:
            raise PromiseBroken(
                f"{len(self.again)} acknowledged receipts came again: {self.again[0]}"
            )

    async def _repeat(self, work: Callable[[Client], Awaitable[None]]) -> None:
        while True:
            await self._once(work)

    async def _once(self, work: Callable[[Client], Awaitable[None]]) -> None:
        """Work with a new client until a call fails."""
        async with Client(self._port) as client:
            try:
                answer = await client.consume(self._group, self._topic)
                while answer.status.code == Code.OK:
                    await work(client)
            except _EndedError:
                return
            except (grpc.aio.AioRpcError, _RefusedError, AssertionError):
                pass
        self.failures += 1
        await asyncio.sleep(_PAUSE_SECONDS)

    async def _produce(self, client: Client) -> None:
        made = message(self._topic, b"x" * 200, message_id=f"M{next(self._numbers):031}")
        answer = await client.call("SendMessage", messages.SendMessageRequest(messages=[made]))
        _check(answer.status.code)
        self.sent.add(made.system_properties.message_id)

    async def _consume(self, client: Client) -> None:
        began = self._loop.time()
        code, found = await client.receive_raw(
            self._topic, self._group, invisible=_INVISIBLE_SECONDS, poll=1
        )
        if code != Code.MESSAGE_NOT_FOUND:
            _check(code)
        for received in found:
            name = received.system_properties.message_id
            self.seen.add(name)
            if self.done.get(name, began) < began:
                self.again.append(name)
        for received in found:
            _check(await client.ack(self._group, received))
            self.done.setdefault(received.system_properties.message_id, self._loop.time())


class _RefusedError(Exception):
    """A call was refused."""


class _EndedError(Exception):
    """A client has done its part."""


def _check(code: int) -> None:
    if code != Code.OK:
        raise _RefusedError

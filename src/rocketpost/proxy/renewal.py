"""Renewal of the invisible time of messages that push consumers handle.

A push consumer does not say how long it needs. The proxy keeps its messages invisible until it
acknowledges them, for at most some hours. The client always sends the first handle of a message, so
the current handle is found by the place of the message.

A renewal and a call about the same message do not overlap: a broker ignores the acknowledgement of
a handle that has been renewed, and would deliver the message again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from rocketpost.errors import NoMessage, RocketpostError
from rocketpost.model.retry_policy import read_retry_policy
from rocketpost.proxy.backend import Backend, Identity, Link
from rocketpost.proxy.client_settings import LEVELS_MS
from rocketpost.proxy.clients import GrpcClient
from rocketpost.proxy.handles import ReceiptHandle
from rocketpost.proxy.popped import Taken, change_invisible
from rocketpost.proxy.settings import ProxyConfig

logger = logging.getLogger(__name__)

_MINUTE_MS: Final = 60_000
_STEPS_MS: Final = tuple(minutes * _MINUTE_MS for minutes in (1, 3, 5, 10, 30, 60))
"""Invisible time of the first renewal, the second, ...; the last one repeats."""
_AT_ONCE: Final = 64
_PROXY: Final = Identity("proxy", ("127.0.0.1", 0), "PYTHON", "")
HELD_MAX: Final = 1_000_000
"""Most messages of all clients that are renewed."""

Key = tuple[str, str, tuple[str, int, int, int]]
"""Group, topic and place of a message."""


class Held:
    """A message that a client handles."""

    __slots__ = (
        "claims",
        "client",
        "failures",
        "message_id",
        "renewals",
        "renewing",
        "since_ms",
        "taken",
    )

    def __init__(self, client: GrpcClient, taken: Taken, message_id: str) -> None:
        self.client = client
        self.taken = taken
        self.message_id = message_id
        self.since_ms = taken.handle.receipt.pop_ms
        self.renewals = 0
        self.failures = 0
        self.claims = 0
        """Number of calls about it that are under way; meanwhile it is not renewed."""
        self.renewing: asyncio.Future[None] | None = None
        """The end of the renewal that is under way."""

    async def settle(self) -> None:
        """Return when no renewal is under way."""
        if self.renewing is not None:
            await asyncio.shield(self.renewing)


class Claim:
    """A call about a message. Enter it to get the newest handle, which stays so until the end."""

    __slots__ = ("_held", "_renewals", "_shown")

    def __init__(self, renewals: Renewals, shown: Taken, held: Held | None) -> None:
        self._renewals = renewals
        self._shown = shown
        self._held = held

    async def __aenter__(self) -> Taken:
        held = self._held
        if held is None:
            return self._shown
        held.claims += 1
        try:
            await held.settle()
        except BaseException:
            held.claims -= 1
            raise
        return held.taken

    async def __aexit__(self, *error: object) -> None:
        if self._held is not None:
            self._held.claims -= 1

    def release(self) -> None:
        """Stop renewing the message: it is acknowledged or returned."""
        if self._held is not None:
            self._renewals.drop(self._held)


class Renewals:
    """The messages whose invisible time is renewed. Belongs to the event loop."""

    def __init__(self, backend: Backend, config: ProxyConfig) -> None:
        self._backend = backend
        self._config = config
        self._held: dict[Key, Held] = {}
        self._of_client: dict[GrpcClient, dict[Key, None]] = {}
        self._own_link: Link | None = None

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_full(self) -> bool:
        """Whether no more messages can be taken."""
        return len(self._held) >= HELD_MAX

    def hold(self, client: GrpcClient, taken: Taken, message_id: str) -> None:
        """Keep a message invisible from now on."""
        key = _key(taken)
        self._remove(key)
        self._held[key] = Held(client, taken, message_id)
        self._of_client.setdefault(client, {})[key] = None

    def claim(self, client: GrpcClient, shown: Taken) -> Claim:
        """Return the claim of a client to a message whose handle it shows.

        If the message was delivered to another client since, the handle is what it says.
        """
        held = self._held.get(_key(shown))
        is_mine = held is not None and held.client is client and _is_later(held.taken, shown)
        return Claim(self, shown, held if is_mine else None)

    def drop(self, held: Held) -> None:
        """Stop renewing a message."""
        key = _key(held.taken)
        if self._held.get(key) is held:
            self._remove(key)

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await asyncio.sleep(self._config.renew_interval_ms / 1000)
            limit_ms = time.time_ns() // 1_000_000 + self._config.renew_ahead_ms
            await _do_all(
                [
                    self._renew(held)
                    for held in self._held.values()
                    if held.taken.handle.visible_at_ms < limit_ms
                ]
            )

    async def return_all(self, client: GrpcClient) -> None:
        """Let the messages of a client that left be delivered to others soon."""
        keys = self._of_client.pop(client, {})
        held = [self._held.pop(key) for key in keys if key in self._held]
        if held:
            logger.info("messages returned: client=%s count=%s", client, len(held))
            await _do_all([self._return(each) for each in held])

    async def give_back(self, messages: Sequence[Taken]) -> None:
        """Let messages be delivered again soon, or after their invisible time if that fails."""
        for taken in messages:
            self._remove(_key(taken))
        await _do_all([self._give_back(taken) for taken in messages])

    def close(self) -> None:
        """Stop all renewals."""
        self._held.clear()
        self._of_client.clear()
        if self._own_link is not None:
            self._own_link.close()

    async def _return(self, held: Held) -> None:
        await held.settle()
        await self._give_back(held.taken)

    async def _give_back(self, taken: Taken) -> None:
        if self._own_link is None:  # the link of a client that left is closed
            self._own_link = self._backend.link(_PROXY, lambda connection, command: None)
        try:
            await change_invisible(self._own_link, taken, self._config.return_ms)
        except RocketpostError as error:
            logger.info("message not returned: topic=%s reason=%s", taken.topic, error)

    async def _renew(self, held: Held) -> None:
        if held.claims or held.renewing is not None:
            return  # a call ends it, or it is looked at again in the next round
        held.renewing = asyncio.get_running_loop().create_future()
        try:
            await self._extend(held)
        except NoMessage:
            self.drop(held)  # acknowledged meanwhile, or its time was over
        except RocketpostError as error:
            held.failures += 1
            if held.failures >= self._config.renew_failures_max:
                logger.warning("renewal given up: client=%s reason=%s", held.client, error)
                self.drop(held)
        finally:
            held.renewing.set_result(None)
            held.renewing = None

    async def _extend(self, held: Held) -> None:
        age_ms = time.time_ns() // 1_000_000 - held.since_ms
        is_last = age_ms >= self._config.renew_ms_max
        step = _STEPS_MS[min(held.renewals, len(_STEPS_MS) - 1)]
        wait_ms = await self._retry_ms(held) if is_last else step
        handle = await change_invisible(held.client.link, held.taken, wait_ms)
        held.taken = held.taken._replace(handle=handle)
        held.renewals += 1
        held.failures = 0
        if is_last:
            logger.info("renewal ended: client=%s age_ms=%s", held.client, age_ms)
            self.drop(held)

    async def _retry_ms(self, held: Held) -> int:
        group = await self._backend.group(held.taken.group)
        policy = read_retry_policy(group.group_retry_policy) if group is not None else None
        return LEVELS_MS[2] if policy is None else policy.delay_ms(0)

    def _remove(self, key: Key) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        mine = self._of_client.get(held.client)
        if mine is not None:
            mine.pop(key, None)
            if not mine:
                del self._of_client[held.client]


async def _do_all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines, some at a time."""
    for at in range(0, len(work), _AT_ONCE):
        await asyncio.gather(*work[at : at + _AT_ONCE])


def _key(taken: Taken) -> Key:
    return taken.group, taken.topic, taken.handle.place


def _is_later(held: Taken, shown: Taken) -> bool:
    """Tell whether a held handle continues the delivery whose handle a client sent."""
    return held.handle.receipt.pop_ms >= shown.handle.receipt.pop_ms


def is_expired(handle: ReceiptHandle) -> bool:
    """Tell whether a message may already have been delivered to others."""
    return handle.visible_at_ms <= time.time_ns() // 1_000_000

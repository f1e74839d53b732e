"""Heartbeats while the event loop is blocked, and a warning about what blocks it.

An async handler that blocks, for example by ``time.sleep`` or a long computation, stops everything
on its loop, including heartbeats; after two minutes brokers would give our queues to others while
we still work on them. A thread with its own loop and connections watches: when the client's loop
has not moved for a while, it logs where that loop is stuck, and sends heartbeats in its place until
the loop moves again. Plain handlers run in threads and never need it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from typing import Final

from rocketpost.client.session import Session
from rocketpost.client.tls import client_context
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.errors import RocketpostError
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector
from rocketpost.transport.sockets import find_simulation

logger = logging.getLogger(__name__)

STALL_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0
_FRAMES_SHOWN: Final = 6


class HeartbeatWatchdog:
    """Sends the heartbeats of a session whose loop is blocked. Started and stopped on that loop.

    Args:
        session: The session.
        stall_seconds: Time after which a blocked loop is noticed.
    """

    def __init__(self, session: Session, *, stall_seconds: float = STALL_SECONDS) -> None:
        self._session = session
        self._stall_seconds = stall_seconds
        self._look_seconds = min(_LOOK_SECONDS, stall_seconds / 2)
        self._moved = time.monotonic()
        self._beat = 0.0
        self._stalled = False
        self._loop_thread = threading.get_ident()
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        if find_simulation() is None:  # there, a loop is never blocked
            name = "rocketpost-watchdog"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    async def keep_moving(self) -> None:
        """Signal that the loop is moving, until cancelled."""
        while True:
            self._moved = time.monotonic()
            await asyncio.sleep(self._look_seconds)

    async def stop(self) -> None:
        """End the thread."""
        if self._thread is not None:
            await asyncio.to_thread(self._stop_blocking, self._thread)

    def _stop_blocking(self, thread: threading.Thread) -> None:
        self._ready.wait()
        self._loop.call_soon_threadsafe(self._ended.set)
        thread.join()

    # In the thread.

    def _run(self) -> None:
        asyncio.run(self._watch())

    async def _watch(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._ready.set()
        credentials = self._session.config.credentials
        sign = credentials.sign if credentials else None
        connector: Connector | None = None
        moved_again = 0.0
        while not self._ended.is_set():
            await self._rest()
            if time.monotonic() - self._moved >= self._stall_seconds:
                self._complain()
                connector = connector or Connector(
                    on_request=_ignore, sign=sign, tls=client_context(self._session.config)
                )
                await self._stand_in(connector)
                moved_again = 0.0
            elif connector is not None:
                self._stalled = False
                moved_again = moved_again or time.monotonic()
                # Not earlier: the broker may have closed the client's own connections meanwhile.
                if self._session.heartbeat_sent > moved_again:
                    await connector.close()
                    connector = None
        if connector is not None:
            await connector.close()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self._look_seconds):
                await self._ended.wait()
        except TimeoutError:
            return

    def _complain(self) -> None:
        if self._stalled:
            return
        self._stalled = True
        frame = sys._current_frames().get(self._loop_thread)
        where = traceback.format_stack(frame)[-_FRAMES_SHOWN:] if frame is not None else []
        logger.error(
            "the event loop is blocked (use a plain function as handler for blocking work, it "
            "runs in a thread): client=%s seconds=%.0f\n%s",
            self._session.client_id,
            time.monotonic() - self._moved,
            "".join(where),
        )

    async def _stand_in(self, connector: Connector) -> None:
        last = max(self._beat, self._session.heartbeat_sent)
        if time.monotonic() - last < self._session.config.heartbeat_seconds:
            return
        self._beat = time.monotonic()
        addresses, body = self._session.heartbeat
        for address in addresses:
            try:
                connection = await connector.connect(address)
                await connection.request(
                    RequestCode.HEART_BEAT, body=body, timeout=self._session.config.call_timeout
                )
            except RocketpostError as error:
                logger.warning("heartbeat failed: broker=%s reason=%s", address, error)


def _ignore(connection: Connection, command: Command) -> None:
    if not command.is_oneway:
        connection.no_answer()

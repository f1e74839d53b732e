"""A slave that is only a socket: it reports what the test wants it to report."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rocketpost.codec.ha_frames import FrameHead, HaFrameDecoder, encode_report
from rocketpost.testing.waiting import until

from .replicas import leader
from .settings.harness import Peer


class RawSlave:
    """One HA connection to a master. Belongs to the loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = HaFrameDecoder()
        self.acknowledges = True
        """Whether everything that arrives is reported at once."""
        self.end = 0
        """End of what has arrived."""

    def report(self, position: int | None = None) -> None:
        """Report a position, or everything that has arrived."""
        self._writer.write(encode_report(self.end if position is None else position))

    async def run(self) -> None:
        """Read until the master closes the connection."""
        while data := await self._reader.read(1 << 20):
            for piece in self._frames.feed(data):
                if isinstance(piece, FrameHead):
                    self.end = piece.position
                else:
                    self.end += len(piece)
            if self.acknowledges:
                self.report()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def raw_slave(master: Peer, *, acknowledges: bool = True) -> AsyncIterator[RawSlave]:
    """Run a slave that has everything so far, and is counted by its master."""
    slaves, store = leader(master).slaves, master.server._context.store
    await until(lambda: store.confirmed_position == store.written_position)
    host, port = slaves.ha_address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    slave = RawSlave(reader, writer)
    slave.acknowledges = acknowledges
    slave.end = store.written_position
    reading = asyncio.create_task(slave.run())
    before = slaves.acks.in_sync(slave.end, 1)
    try:
        slave.report()
        await until(lambda: slaves.acks.in_sync(slave.end, 1) > before)
        yield slave
    finally:
        await slave.close()
        reading.cancel()
        await asyncio.wait((reading,))


async def until_alone(master: Peer) -> None:
    """Wait until a master has noticed that its slaves are gone."""
    slaves = leader(master).slaves
    await until(lambda: not slaves.status().replicas)

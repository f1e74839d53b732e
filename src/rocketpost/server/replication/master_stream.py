"""A slave's connection to its master's log: records in, reports out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from rocketpost.codec.ha_frames import encode_report
from rocketpost.errors import ReplicationError, StoreError
from rocketpost.replication.receiver import LogReceiver
from rocketpost.replication.reports import ReportSchedule
from rocketpost.transport.tls_socket import StreamSocket

READ_BYTES: Final = 1024 * 1024
"""Most bytes read in one loop iteration."""
ROOM_BYTES: Final = 64 * 1024
"""Room before what is read, for the start of a record whose rest is read next."""
WAKE_BYTES_MAX: Final = 256 * 1024
"""Bytes of a frame that has begun for which the loop is woken at the latest."""
PART_MS: Final = 50
"""Time since the last report after which a part of a frame is reported."""
_UNSENT_BYTES_MAX: Final = 1024
_TICK_SECONDS: Final = 1.0


class MasterStream:
    """One connection to a master's HA port. Owned by the loop.

    Args:
        sock: The connected socket, which is not blocking; this object closes it.
        receiver: Appends what arrives.
        request: Position to request the log from.
        heartbeat_ms: Time after which a position is reported again.
        silence_ms: Time without a byte from the master after which the stream ends.
        now_ms: Returns a time that never goes back.
        on_read: Called when everything that was read is appended.
    """

    def __init__(
        self,
        sock: StreamSocket,
        *,
        receiver: LogReceiver,
        request: int,
        heartbeat_ms: int,
        silence_ms: int,
        now_ms: Callable[[], int],
        on_read: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._receiver = receiver
        self._request = request
        self._position = request
        self._whole_end = 0
        self._reports = ReportSchedule(interval_ms=heartbeat_ms)
        self._tick_seconds = min(_TICK_SECONDS, heartbeat_ms / 4000)
        self._silence_ms = silence_ms
        self._now_ms = now_ms
        self._on_read = on_read
        self._buffer = memoryview(bytearray(ROOM_BYTES + READ_BYTES))
        self._unread = self._buffer[ROOM_BYTES:]
        self._wake_bytes = 1
        self._unsent = b""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._tick_bytes = 0
        self._tick_ms = self.heard_ms = now_ms()
        self.received = 0
        """Bytes that have arrived, heads of frames included."""
        self.bytes_per_second = 0
        """Bytes that arrived in the last second."""
        self.reported_ms = 0
        """Time of the last report."""

    async def run(self) -> None:
        """Follow the master until the stream ends.

        Raises:
            ReplicationError: The connection was lost, or the master's log does not continue ours.
            StoreError: The records cannot be stored.
        """
        self._loop.add_reader(self._socket, self._read)
        ticks = self._loop.create_task(self._keep_time(), name="reports to the master")
        try:
            self._report()
            await self._ended
        finally:
            ticks.cancel()
            await asyncio.wait((ticks,))
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def advance(self, position: int) -> None:
        """Report that everything before a position is kept, if a whole frame ended before it.

        Parts of a frame are reported only if it arrives slowly: senders of a master may wait for
        messages at its beginning.
        """
        if position <= self._position:
            return
        self._position = position
        is_whole = min(position, self._whole_end) > self._reports.reported
        if is_whole or self.heard_ms - self.reported_ms >= PART_MS:
            self._report()

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            if self._wake_bytes > 1 and not self._ended.done():
                self._read()  # a slow network may need minutes for the rest of a frame
            now = self._now_ms()
            if now - self.heard_ms > self._silence_ms:
                self._end(ReplicationError(f"the master was silent for {self._silence_ms} ms"))
                return
            if now - self._tick_ms >= 1000:
                passed = now - self._tick_ms
                self.bytes_per_second = (self.received - self._tick_bytes) * 1000 // passed
                self._tick_bytes, self._tick_ms = self.received, now
            self._report()

    def _read(self) -> None:
        try:
            size = self._socket.recv_into(self._unread)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(ReplicationError(f"the connection was lost: {error.strerror}"))
            return
        if not size:
            self._end(ReplicationError("the master closed the connection"))
            return
        self.received += size
        self.heard_ms = self._now_ms()
        receiver, frames_ended = self._receiver, self._receiver.frames_ended
        try:
            receiver.feed(self._buffer[: ROOM_BYTES + size], ROOM_BYTES)
        except (ReplicationError, StoreError) as error:
            self._end(error)
        if receiver.frames_ended > frames_ended:
            self._whole_end = receiver.end
        self._on_read()
        self._choose_wake()

    def _choose_wake(self) -> None:
        """Wait for the rest of a frame, or for much of it: a wake-up costs its sender too."""
        wake_bytes = min(self._receiver.missing, WAKE_BYTES_MAX) or 1
        if wake_bytes != self._wake_bytes:
            self._wake_bytes = wake_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)

    def _report(self) -> None:
        if self._ended.done():
            return
        now = self._now_ms()
        if self._reports.is_due(self._position, now):
            self.reported_ms = now
            if len(self._unsent) < _UNSENT_BYTES_MAX:  # else a later report says more
                self._unsent += encode_report(self._position)
        if self._unsent:
            self._send()

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return  # the next tick tries again
        except OSError as error:
            self._end(ReplicationError(f"the connection was lost: {error.strerror}"))

    def _end(self, error: Exception) -> None:
        if not self._ended.done():
            self._loop.remove_reader(self._socket)
            self._ended.set_exception(error)

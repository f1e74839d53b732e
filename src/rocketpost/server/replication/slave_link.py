"""A master's connection to one slave: parts of the log out, reports in.

In one loop iteration, the link sends as much as the socket takes and ``replication.pacing`` allows,
so that no slave delays others. Bodies of frames are sent from the files of the log, without a copy.
Parts that are not in memory are read by a thread first.

If no sender waits for slaves, a turn, a wake-up of the slave and a report cost more than the few
messages that they are about. So messages gather before they are sent, and reports do not wake the
loop one by one: they are read when something is sent, and once a second.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, Protocol

from rocketpost.codec.ha_frames import REPORT_BYTES, ReportDecoder
from rocketpost.errors import RemoteProtocolError, ReplicationError
from rocketpost.replication.pacing import CatchUpPace
from rocketpost.replication.sender import LogSender
from rocketpost.transport.tls_socket import StreamSocket

logger = logging.getLogger(__name__)

LINGER_SECONDS: Final = 0.02
"""Time that new messages may wait for more, if no sender waits for slaves."""
LINGER_BYTES: Final = 2 * 1024 * 1024
"""Bytes of new messages that are sent without such a wait."""
LAZY_BYTES: Final = 64 * REPORT_BYTES
"""Reports that wake the loop if none is awaited; fewer wait for the next turn."""
READ_AHEAD_BYTES: Final = 2 * 1024 * 1024
"""Bytes that a thread reads into memory at a time, unless a frame is larger."""
_REPORT_BYTES_MAX: Final = 64 * 1024
_WINDOW_MS: Final = 1000


class Log(Protocol):
    """The part of a log that a master sends."""

    @property
    def first(self) -> int:
        """Position of the oldest byte kept."""

    @property
    def end(self) -> int:
        """End of the bytes that slaves may have."""

    def announce(self, end: int) -> None:
        """Note that the log grows up to ``end`` now."""

    def send(self, sock: StreamSocket, position: int, size: int) -> int:
        """Send bytes to a socket; returns how many it took, 0 if the log lacks them."""

    def is_cached(self, position: int, size: int) -> bool:
        """Tell whether bytes are in memory."""

    def warm_from_thread(self, position: int, size: int) -> None:
        """Read bytes into memory."""

    def close(self) -> None:
        """Release what is held for sending."""


class SlaveLink:
    """The connection of one slave. Owned by the loop.

    Args:
        sock: The connected socket; this object closes it.
        address: The slave's host and port.
        log: The master's log, opened for this slave; this object closes it.
        sender: Decides what is sent.
        now_ms: Returns a time that never goes back.
        frame_bytes_max: Most bytes of the log in one frame.
        rate_max: Most bytes per second; None if unlimited.
        linger_seconds: Time that a few new bytes may wait for more; 0 if they may not.
        on_report: Called with this link after each report of the slave, and when its request was
            found in the log.
        on_end: Called with this link and the reason when the connection has ended.
    """

    def __init__(
        self,
        sock: StreamSocket,
        address: tuple[str, int],
        *,
        log: Log,
        sender: LogSender,
        now_ms: Callable[[], int],
        frame_bytes_max: int,
        rate_max: int | None,
        linger_seconds: float,
        on_report: Callable[[SlaveLink], None],
        on_end: Callable[[SlaveLink, str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self.host, self.port = address
        self._log = log
        self.sender = sender
        self._now_ms = now_ms
        self._frame_bytes_max = frame_bytes_max
        self._rate_max = rate_max
        self._linger_seconds = linger_seconds
        self._lingering: asyncio.TimerHandle | None = None
        self._pace = CatchUpPace(end=log.end, now_ms=now_ms())
        self._on_report = on_report
        self._on_end = on_end
        self._reports = ReportDecoder()
        self._head = b""
        self._body_at = self._body_end = 0
        self._is_open = True
        self._is_waiting = False
        self._is_scheduled = False
        self._wake_bytes = 1
        self._warming: asyncio.Future[None] | None = None
        self._warm_end = 0
        self._told = 0
        self._pause: asyncio.TimerHandle | None = None
        self._window_ms = self.connected_ms = now_ms()
        self._window_bytes = 0
        self.bytes_per_second = 0
        """Bytes sent in the last full second."""
        self.broker_id: int | None = None
        """The slave's broker id, once it has introduced itself."""
        self._loop.add_reader(sock, self._read)

    @property
    def address(self) -> str:
        """The slave's end of the connection."""
        return f"{self.host}:{self.port}"

    @property
    def _is_halted(self) -> bool:
        """Whether something that was arranged continues the stream: socket, thread or timer."""
        return self._is_waiting or self._warming is not None or self._pause is not None

    def note_growth(self, end: int) -> None:
        """Send new messages, which are visible up to ``end`` when this returns to the loop.

        If a sender waits, they are sent now. Else many are sent soon, and few together with those
        of the next milliseconds: each turn costs the same, however much it sends.
        """
        self._log.announce(end)
        if not self._linger_seconds:
            self._send_now()
        else:
            self._send_soon()

    def _send_soon(self) -> None:
        if self._is_scheduled or self._is_halted or not self._is_open:
            return
        if not self._linger_seconds or self._log.end - self.sender.next >= LINGER_BYTES:
            self.wake()
        elif self._lingering is None:
            self._lingering = self._loop.call_later(self._linger_seconds, self._end_linger)

    def set_limits(self, *, frame_bytes_max: int, rate_max: int | None) -> None:
        """Apply limits to everything that is sent from now on."""
        self._frame_bytes_max = frame_bytes_max
        self.sender.set_batch_bytes(frame_bytes_max)
        self._rate_max = rate_max

    def wake(self) -> None:
        """Send the bytes that are due, at the end of this loop iteration."""
        if not self._is_scheduled and self._is_open:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def tick(self) -> None:
        """Count the bytes of the last second, and send a heartbeat if it is due."""
        self._roll_window()
        if self.sender.stuck:
            self._log.close()  # the file of a deleted segment takes room while it is open
        self.wake()

    def close(self, reason: str) -> None:
        """End the connection."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._socket)
        if self._is_waiting:
            self._loop.remove_writer(self._socket)
        if self._warming is not None:
            self._warming.cancel()
        for timer in (self._pause, self._lingering):
            if timer is not None:
                timer.cancel()
        self._socket.close()
        self._log.close()
        self._on_end(self, reason)

    # Reports.

    def read_reports(self) -> None:
        """Take the reports that have arrived, which may end the connection."""
        if not self._is_open:
            return
        try:
            data = self._socket.recv(_REPORT_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"lost: {error.strerror}")
            return
        if not data:
            self.close("the slave closed it")
            return
        try:
            for position in self._reports.feed(data):
                self.sender.report(position, self._now_ms())
        except (RemoteProtocolError, ReplicationError) as error:
            self.close(str(error))
            return
        self._told = self.sender.acked
        self._on_report(self)

    def _read(self) -> None:
        self.read_reports()
        if not self.sender.has_started:
            self.wake()
        elif self.sender.next < self._log.end:
            self._send_soon()  # the window was full

    def _choose_wake(self) -> None:
        """Let single reports wake the loop only if the stream cannot continue without one."""
        is_idle = not self._is_halted and not self._is_scheduled
        is_full = is_idle and self.sender.next < self._log.end
        wake_bytes = 1 if is_full or not self.sender.has_started else LAZY_BYTES
        if wake_bytes != self._wake_bytes:
            self._wake_bytes = wake_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)

    # Sending.

    def _pump(self) -> None:
        self._is_scheduled = False
        if self._linger_seconds and self.sender.has_started:
            self.read_reports()
        if not self._is_open or self._is_halted:
            return
        if reason := self._send_turn():
            self.close(reason)
            return
        if self._linger_seconds:
            self._choose_wake()
        if self.sender.acked != self._told:
            self._told = self.sender.acked
            self._on_report(self)

    def _send_now(self) -> None:
        """Send new messages at once; if the link must end, close it in the next loop iteration."""
        if not self._is_open or self._is_halted:
            return
        if not self.sender.has_started:
            self.wake()
        elif reason := self._send_turn():
            self._loop.call_soon(self.close, reason)

    def _send_turn(self) -> str:
        """Send what this turn allows; returns the reason if the connection has to end."""
        try:
            self._send_frames()
        except (BlockingIOError, InterruptedError):
            self._is_waiting = True
            self._loop.add_writer(self._socket, self._continue)
        except OSError as error:
            return f"lost: {error.strerror}"
        except ReplicationError as error:
            return str(error)
        return ""

    def _continue(self) -> None:
        self._is_waiting = False
        self._loop.remove_writer(self._socket)
        self._pump()

    def _send_frames(self) -> None:
        """Send frames that are in memory, until there is no more, or enough for this turn.

        Raises:
            BlockingIOError: The socket takes no more now.
        """
        log, sender, pace = self._log, self.sender, self._pace
        left = room = pace.begin_turn(log.end - sender.next, log.end, self._now_ms())
        try:
            while left > 0:
                while self._head:
                    more = socket.MSG_MORE if self._body_at < self._body_end else 0
                    self._head = self._head[self._socket.send(self._head, more) :]
                while self._body_at < self._body_end:
                    left -= self._send_body()
                if left <= 0:
                    break
                if not self._may_send():
                    return
                frame = sender.next_frame(log.first, log.end, self._now_ms())
                if frame is None:
                    return
                self._head = frame.head()
                self._body_at, self._body_end = frame.position, frame.position + frame.size
                self._window_bytes += frame.size
        finally:
            pace.end_turn(room - left)
        if pace.is_far:
            self._pause_for(pace.pause_ms)
        elif sender.next < log.end:
            self._send_soon()

    def _send_body(self) -> int:
        size = self._body_end - self._body_at
        sent = self._log.send(self._socket, self._body_at, size)
        if not sent:
            raise ReplicationError(f"the log has no {size} bytes at {self._body_at}")
        self._body_at += sent
        return sent

    def _may_send(self) -> bool:
        """Tell whether the next bytes may be sent now; if not, arrange to continue later."""
        if self._rate_max is not None:
            self._roll_window()
            if self._window_bytes >= self._rate_max:
                self._pause_for(max(self._window_ms + _WINDOW_MS - self._now_ms(), 1))
                return False
        position, end = self.sender.next, self._log.end
        if self.sender.requested is None or position >= end:
            return True
        if min(position + self._frame_bytes_max, end) <= self._warm_end:
            return True
        size = min(max(READ_AHEAD_BYTES, self._frame_bytes_max), end - position)
        if self._log.is_cached(position, size):
            self._warm_end = position + size
            return True
        self._warming = self._loop.run_in_executor(None, self._log.warm_from_thread, position, size)
        self._warming.add_done_callback(lambda done: self._warmed(done, position + size))
        return False

    def _warmed(self, done: asyncio.Future[None], end: int) -> None:
        self._warming = None
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            self.close(f"the log cannot be read at {self.sender.next}: {error}")
            return
        self._warm_end = end
        self.wake()

    def _end_linger(self) -> None:
        self._lingering = None
        self.wake()

    def _pause_for(self, pause_ms: int) -> None:
        assert self._pause is None
        self._pause = self._loop.call_later(pause_ms / 1000, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self.wake()

    def _roll_window(self) -> None:
        passed = self._now_ms() - self._window_ms
        if passed >= _WINDOW_MS:
            self.bytes_per_second = self._window_bytes * 1000 // passed
            self._window_ms += passed
            self._window_bytes = 0

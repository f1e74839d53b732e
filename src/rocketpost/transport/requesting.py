"""Our requests on a connection: numbered, signed, and paired with the peer's responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rocketpost.codec.codes import OURS, request_text
from rocketpost.codec.command import BINARY, JSON, ONEWAY, Command, encode_command
from rocketpost.errors import ConnectionLost, NotConnected, RemoteProtocolError, RequestTimeout
from rocketpost.transport.host import address_text

logger = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview
Sign = Callable[[Mapping[str, str] | None, Sequence[Buffer]], Mapping[str, str]]
Receive = Callable[[Command | ConnectionLost], None]
"""Gets the response to a request, or the error if the connection is lost first; never raises."""
PlainAnswer = tuple[Any, ...]
"""An answer that was read without becoming a command: opaque number, index of its frame, more."""
Recipient = tuple[Callable[[Any, Command | PlainAnswer | ConnectionLost], None], Any]
"""The recipient of the answer to an encoded request: a function, and its first argument.

The second one is the answer in either form, or the error."""
ReadAnswers = Callable[[bytes], tuple[Sequence[PlainAnswer], int]]
"""Reads the plain answers at the front of received bytes; returns the index after the last."""


class Requesting(asyncio.BaseProtocol):
    """The requesting half of a connection. Belongs to the event loop.

    Args:
        sign: Returns the header fields of a request with a signature, given fields and body.
        read_answers: Reads plain answers to requests that their sender encoded; without it, they
            are decoded like any others.
    """

    def __init__(self, sign: Sign | None, read_answers: ReadAnswers | None = None) -> None:
        self._sign = sign
        self._read_answers = read_answers
        self._reads_answers = read_answers is not None
        self._waiting: dict[int, Receive] = {}
        self._encoded: dict[int, Recipient] = {}
        """Unanswered requests that their senders encoded, with those who get the answers."""
        self._opaque = 0
        self._loop = asyncio.get_running_loop()
        self.peer: tuple[str, int] = ("", 0)
        self.source: tuple[str, int] | None = None
        """The peer's address as a trusted load balancer names it."""
        self.certificate_user = ""
        """The user that the peer has proved to be by its certificate; empty if it did not."""
        self.known_login: Any = None
        """The server's record of the login that was used last; None at first."""
        self.is_known = False
        """Whether the peer has logged in."""
        self.is_encrypted = False
        self.is_trusted = False
        """Whether the peer is a part of this process, which checks the rights of its clients."""
        self.encoding = JSON
        """The header encoding that the peer used last."""
        self.sender = OURS
        """The program whose requests these are; another one if this process speaks for it."""

    @property
    def peer_text(self) -> str:
        """The peer's address as ``host:port``."""
        return address_text(self.peer)

    @property
    def unanswered_count(self) -> int:
        """Number of our unanswered requests."""
        return len(self._waiting) + len(self._encoded)

    @property
    def is_open(self) -> bool:
        """Whether the connection can still send."""
        raise NotImplementedError

    def send(self, *buffers: Buffer) -> None:
        """Queue bytes."""
        raise NotImplementedError

    async def request(
        self,
        code: int,
        *,
        fields: Mapping[str, str] | None = None,
        body: Iterable[Buffer] | Buffer = b"",
        timeout: float,
        encoding: int | None = None,
    ) -> Command:
        """Send a request and return the response, even if its code is an error.

        Raises:
            RequestTimeout: No response within ``timeout`` seconds.
            ConnectionLost: The connection broke first.
            LocalProtocolError: The request does not fit a frame.
        """
        future = self.start_request(code, fields=fields, body=body, encoding=encoding)
        timer = self._loop.call_later(timeout, self._time_out, future, code, timeout)
        try:
            return await future
        finally:
            timer.cancel()

    def start_request(
        self,
        code: int,
        *,
        fields: Mapping[str, str] | None = None,
        body: Iterable[Buffer] | Buffer = b"",
        encoding: int | None = None,
    ) -> asyncio.Future[Command]:
        """Send a request; the future gets the response. Cancel it to stop waiting.

        Raises:
            NotConnected: The connection is closed.
            LocalProtocolError: The request does not fit a frame.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        opaque = self.send_request(code, partial(_settle, future), fields=fields, body=body,
                                   encoding=encoding)  # fmt: skip
        future.add_done_callback(lambda _: self.forget(opaque))
        return future

    def send_request(
        self,
        code: int,
        receive: Receive,
        *,
        fields: Mapping[str, str] | None = None,
        body: Iterable[Buffer] | Buffer = b"",
        encoding: int | None = None,
    ) -> int:
        """Send a request whose response goes to ``receive``; return its opaque number.

        Raises:
            NotConnected: The connection is closed.
            LocalProtocolError: The request does not fit a frame.
        """
        opaque = self._send_request(code, 0, fields, body, encoding)
        self._waiting[opaque] = receive
        return opaque

    def next_opaque(self) -> int:
        """Return the opaque number for a request that its sender encodes in JSON.

        Returns:
            -1 if requests need a signature or the binary encoding, or the connection is closed.
        """
        if self._sign is not None or self.encoding != JSON or not self.is_open:
            return -1
        opaque = self._opaque = (self._opaque + 1) & 0x7FFF_FFFF
        return opaque

    def forget(self, opaque: int) -> None:
        """Stop waiting for the response to a request; it is dropped when it comes."""
        if self._encoded.pop(opaque, None) is None:
            self._waiting.pop(opaque, None)

    def send_oneway(
        self,
        code: int,
        *,
        fields: Mapping[str, str] | None = None,
        body: Iterable[Buffer] | Buffer = b"",
        encoding: int | None = None,
    ) -> None:
        """Send a request that gets no response.

        Raises:
            NotConnected: The connection is closed.
            LocalProtocolError: The request does not fit a frame.
        """
        self._send_request(code, ONEWAY, fields, body, encoding)

    def _send_request(
        self,
        code: int,
        flag: int,
        fields: Mapping[str, str] | None,
        body: Iterable[Buffer] | Buffer,
        encoding: int | None,
    ) -> int:
        if not self.is_open:
            raise NotConnected(f"connection to {self.peer_text} is closed")
        opaque = self._opaque = (self._opaque + 1) & 0x7FFF_FFFF
        buffers, size = _body_buffers(body)
        if self._sign is not None:
            fields = self._sign(fields, buffers)
        head = encode_command(
            code,
            opaque=opaque,
            flag=flag,
            fields=fields,
            body_bytes=size,
            encoding=self._encoding_for(code, encoding),
            sender=self.sender,
        )
        self.send(head, *buffers)
        return opaque

    def _time_out(self, future: asyncio.Future[Command], code: int, seconds: float) -> None:
        if not future.done():
            what = f"no response from {self.peer_text} to {request_text(code)} in {seconds:g} s"
            error = RequestTimeout(what)
            error.request_code = code
            future.set_exception(error)

    def _response_received(self, command: Command) -> None:
        entry = self._encoded.pop(command.opaque, None)
        if entry is not None:
            receive_either, sent = entry
            receive_either(sent, command)
            return
        receive = self._waiting.pop(command.opaque, None)
        if receive is None:
            logger.debug("late response dropped: peer=%s code=%s", self.peer_text, command.code)
        else:
            receive(command)

    def _take_answers(self, data: bytes) -> bytes:
        """Pass on the plain answers at the front of whole frames; return the rest.

        Raises:
            RemoteProtocolError: An answer could not be passed on.
        """
        assert self._read_answers is not None
        answers, end = self._read_answers(data)
        pop = self._encoded.pop
        try:
            for answer in answers:
                entry = pop(answer[0], None)
                if entry is None:  # late, or to another request
                    return data[answer[1] :]
                receive, sent = entry
                receive(sent, answer)
        except Exception:
            logger.exception("answer not handled: peer=%s", self.peer_text)
            raise RemoteProtocolError("an answer could not be handled") from None
        return data[end:] if end else data

    def _fail_requests(self) -> None:
        waiting, encoded = list(self._waiting.values()), list(self._encoded.values())
        self._waiting.clear()
        self._encoded.clear()
        for receive in waiting:
            receive(ConnectionLost(f"connection to {self.peer_text} was lost"))
        for receive_either, sent in encoded:
            receive_either(sent, ConnectionLost(f"connection to {self.peer_text} was lost"))

    def _encoding_for(self, code: int, wanted: int | None) -> int:
        encoding = self.encoding if wanted is None else wanted
        # POP's codes do not fit the binary header.
        return JSON if encoding == BINARY and code > 0x7FFF else encoding


def _settle(future: asyncio.Future[Command], outcome: Command | ConnectionLost) -> None:
    if future.done():
        return
    if isinstance(outcome, Command):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def _body_buffers(body: Iterable[Buffer] | Buffer) -> tuple[list[Buffer], int]:
    if isinstance(body, bytes | bytearray | memoryview):
        return ([body], len(body)) if len(body) else ([], 0)
    buffers = list(body)
    return buffers, sum(map(len, buffers))

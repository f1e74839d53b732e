"""Requests for popped messages: pop, peek, and notifications of new messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketpost.broker.pop.requests import PopAnswer, PopPlace, PopRequests
from rocketpost.broker.steps import Steps
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.pop import (
    Notification,
    PeekMessage,
    PollingInfo,
    PopMessage,
    PopResponse,
)
from rocketpost.server.access.gate import Gate
from rocketpost.server.handlers.pop_replies import PopReplies
from rocketpost.server.popping.desk import PopDesk
from rocketpost.server.routes.access import GET, SUB, of_consumer
from rocketpost.server.routes.dispatch import answer, answer_parked, park, refusal
from rocketpost.server.routes.route import Reply, Route, in_slices, plain
from rocketpost.transport.connection import Buffer, Connection


class PopHandlers:
    """Serves pops and requests for notification. Owned by the loop."""

    def __init__(self, *, desk: PopDesk, requests: PopRequests, replies: PopReplies) -> None:
        self._desk = desk
        self._requests = requests
        self._replies = replies

    def routes(self) -> Sequence[Route]:
        """Return the routes of this family."""
        return [
            in_slices(RequestCode.POP_MESSAGE, PopMessage, of_consumer(SUB), self.pop),
            in_slices(RequestCode.NOTIFICATION, Notification, of_consumer(SUB), self.notify),
            in_slices(RequestCode.PEEK_MESSAGE, PeekMessage, of_consumer(SUB), self.peek),
            plain(RequestCode.POLLING_INFO, PollingInfo, of_consumer(GET), self.polling_info),
        ]

    def pop(self, connection: Connection, command: Command, header: PopMessage) -> Steps[None]:
        """Answer a pop once its checkpoint is stored, or hold it."""
        return self._desk.pop(header, PopWaiter(connection, command, self._pop_reply))

    def notify(self, connection: Connection, command: Command, header: Notification) -> Steps[None]:
        """Answer as soon as a pop might find messages."""
        return self._desk.notify(header, PopWaiter(connection, command, _news_reply))

    def peek(self, connection: Connection, command: Command, header: PeekMessage) -> Steps[Reply]:
        """Return the messages that a pop would take, without taking them."""
        views, rest = yield from self._desk.peek(header, connection)
        head = PopResponse(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest)
        code = ResponseCode.SUCCESS if views else ResponseCode.PULL_NOT_FOUND
        return Reply(code, fields=to_fields(head), body=list[Buffer](views))

    def polling_info(self, connection: Connection, command: Command, header: PollingInfo) -> Reply:
        """Return the number of pops that wait in one place."""
        self._requests.check(header, connection)
        place = PopPlace(header.topic, header.consumer_group, header.queue_id)
        return Reply(fields={"pollingNum": str(self._desk.held_in(place))})

    def _pop_reply(self, answer: PopAnswer) -> Reply:
        if answer.popped is None:
            return Reply(answer.code)
        return self._replies.reply(answer.request, answer.popped)


class PopWaiter:
    """A pop that is answered on its connection.

    Args:
        reply: Turns an answer into a reply.
    """

    __slots__ = ("_command", "_is_parked", "_reply", "owner")

    def __init__(
        self, connection: Connection, command: Command, reply: Callable[[PopAnswer], Reply]
    ) -> None:
        self.owner = connection
        self._command = command
        self._reply = reply
        self._is_parked = False

    @property
    def peer_text(self) -> str:
        """The peer's address."""
        return self.owner.peer_text

    def note_parked(self) -> None:
        """Stop counting the request as unanswered while it waits."""
        park(self.owner, self._command)
        self._is_parked = True

    def resume(self, answer: PopAnswer) -> None:
        """Send the answer."""
        self._send(self._reply(answer))

    def refuse(self, error: Exception) -> None:
        """Send a refusal."""
        self._send(refusal(self.owner, self._command, error))

    def lost_right(self, gate: Gate) -> Exception | None:
        """Return the reason if the client has lost the right to pop."""
        return gate.held_problem(self._command)

    def _send(self, reply: Reply) -> None:
        send = answer_parked if self._is_parked else answer
        send(self.owner, self._command, reply)


def _news_reply(answer: PopAnswer) -> Reply:
    has_message = answer.code == ResponseCode.SUCCESS
    is_full = answer.code == ResponseCode.POLLING_FULL
    return Reply(fields={"hasMsg": _text(has_message), "pollingFull": _text(is_full)})


def _text(is_so: bool) -> str:
    return "true" if is_so else "false"

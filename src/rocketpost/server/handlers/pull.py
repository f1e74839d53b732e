"""Pulls of the remoting protocol: decoded, answered, or parked until there is an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketpost.broker.pull.service import PullAnswer, PullHold, PullService
from rocketpost.codec.codes import LANGUAGE, VERSION, RequestCode, ResponseCode
from rocketpost.codec.command import JSON, Command
from rocketpost.codec.frames import encode_frame
from rocketpost.codec.headers.message import PullMessage
from rocketpost.server.access.gate import Gate
from rocketpost.server.cold_reads import ColdReads
from rocketpost.server.long_polling import LongPolls
from rocketpost.server.routes.access import SUB, of_group, of_topic
from rocketpost.server.routes.dispatch import answer_parked, park, refusal
from rocketpost.server.routes.route import Reply, Route, plain
from rocketpost.transport.connection import Buffer, Connection

_FOUND: Final = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"%d",'
    b'"nextBeginOffset":"%d","minOffset":"%d",'
    b'"maxOffset":"%d","topicSysFlag":"%d","groupSysFlag":"%d"},"flag":1,"language":"'
    + LANGUAGE.encode()
    + b'","opaque":%d,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":'
    + str(VERSION).encode()
    + b"}"
)

PULL_ACCESS: Final = of_topic(SUB) + of_group(SUB, field="consumer_group")
"""The rights that both kinds of pull need."""


class PullHandler:
    """Serves pulls. Owned by the loop.

    Args:
        polls: Holds pulls that wait for messages.
        cold_reads: Holds pulls that wait for the disk.
    """

    def __init__(self, *, service: PullService, polls: LongPolls, cold_reads: ColdReads) -> None:
        self._service = service
        self._cold_reads = cold_reads
        self._polls = polls

    def routes(self) -> Sequence[Route]:
        """Return the routes of both kinds of pull."""
        return [
            plain(
                RequestCode.PULL_MESSAGE,
                PullMessage,
                PULL_ACCESS,
                self.pull,
            ),
            plain(
                RequestCode.LITE_PULL_MESSAGE,
                PullMessage,
                PULL_ACCESS,
                self.pull,
            ),
        ]

    def pull(self, connection: Connection, command: Command, request: PullMessage) -> Reply | None:
        """Answer a pull, or hold it."""
        is_lite = command.code == RequestCode.LITE_PULL_MESSAGE
        outcome = self._service.pull(request, connection, is_lite=is_lite)
        if isinstance(outcome, PullHold):
            place = self._cold_reads if outcome.cold else self._polls
            place.park(PullWaiter(connection, command), outcome)
            park(connection, command)
            return None
        if outcome.pulled.code == ResponseCode.SUCCESS and command.encoding == JSON:
            if command.timing is not None:
                command.timing.end(command.code, ResponseCode.SUCCESS)
            connection.answer(*_encode_found(command, outcome))
            return None
        return _reply(outcome)


class PullWaiter:
    """A held pull that is answered on its connection."""

    __slots__ = ("_command", "owner")

    def __init__(self, connection: Connection, command: Command) -> None:
        self.owner = connection
        self._command = command

    def resume(self, answer: PullAnswer) -> None:
        """Send the answer."""
        command = self._command
        if answer.pulled.code == ResponseCode.SUCCESS and command.encoding == JSON:
            if command.timing is not None:
                command.timing.end(command.code, ResponseCode.SUCCESS)
            self.owner.send(*_encode_found(command, answer))  # parked, so not counted as unanswered
        else:
            answer_parked(self.owner, command, _reply(answer))

    def refuse(self, error: Exception) -> None:
        """Send a refusal."""
        answer_parked(self.owner, self._command, refusal(self.owner, self._command, error))

    def lost_right(self, gate: Gate) -> Exception | None:
        """Return the reason if the client has lost the right to pull."""
        return gate.held_problem(self._command)


def _encode_found(command: Command, answer: PullAnswer) -> list[Buffer]:
    """Return the most common answer, built without a dictionary of fields."""
    pulled, topic, group, suggested_id = answer
    head = _FOUND % (
        suggested_id,
        pulled.next_offset,
        pulled.first,
        pulled.end,
        topic.topic_sys_flag,
        group.group_sys_flag,
        command.opaque,
    )
    return [encode_frame(JSON, head, pulled.size), *pulled.views]


def _reply(answer: PullAnswer) -> Reply:
    pulled, topic, group, suggested_id = answer
    fields = {
        "suggestWhichBrokerId": str(suggested_id),
        "nextBeginOffset": str(pulled.next_offset),
        "minOffset": str(pulled.first),
        "maxOffset": str(pulled.end),
        "topicSysFlag": str(topic.topic_sys_flag),
        "groupSysFlag": str(group.group_sys_flag),
    }
    body: list[Buffer] = [*pulled.views]
    return Reply(pulled.code, fields, body, pulled.status)

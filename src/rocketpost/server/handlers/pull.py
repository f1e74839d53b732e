"""Pulls: answered at once from the page cache, or held until a message arrives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

import msgspec

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.matching import Matcher
from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.table import GroupTable, group_not_exist
from rocketpost.broker.pull import Pulled, PullService
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.codes import LANGUAGE, VERSION, RequestCode, ResponseCode
from rocketpost.codec.command import JSON, ONEWAY, Command, encode_response
from rocketpost.codec.faults import (
    InvalidParameter,
    NoPermission,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotExist,
)
from rocketpost.codec.frames import encode_frame
from rocketpost.codec.headers.message import PullMessage
from rocketpost.model import sysflag
from rocketpost.model.group import TAG, GroupConfig, Subscription, parse_tags
from rocketpost.model.ids import Position
from rocketpost.model.names import is_own_offset
from rocketpost.model.topic import TopicConfig
from rocketpost.server.access import SUB, of_group, of_topic
from rocketpost.server.dispatch import refusal
from rocketpost.server.long_polling import Held, LongPolls
from rocketpost.server.route import Route, plain
from rocketpost.server.settings.limits import share
from rocketpost.store.draft import Appended
from rocketpost.transport.connection import Buffer, Connection
from rocketpost.transport.turns import Turns

logger = logging.getLogger(__name__)

_SUSPEND_MS_MAX = 120_000
_HELD_TAGS_MAX = 1_000_000
_EXPRESSION_LENGTH_MAX = 64 * 1024

_FOUND = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"%d",'
    b'"maxOffset":"%d","topicSysFlag":"%d","groupSysFlag":"%d"},"flag":1,"language":"'
    + LANGUAGE.encode()
    + b'","opaque":%d,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":'
    + str(VERSION).encode()
    + b"}"
)


class PullRules(NamedTuple):
    """Settings of the broker that concern pulls; some may change at run time."""

    broker_readable: bool
    lite_pull: bool
    long_polling: bool
    short_polling_ms: int
    held_max: int
    held_of_one_max: int = 16_384
    """Pulls that one connection may have waiting."""


class _Waiting(NamedTuple):
    command: Command
    header: PullMessage
    topic: TopicConfig
    group: GroupConfig


class _Wanted(NamedTuple):
    """Messages that a pull wants: by their tags codes (none for all), or by a matcher."""

    tags: AbstractSet[int] = frozenset()
    matcher: Matcher | None = None


_EVERYTHING = _Wanted()


class PullHandler:
    """Serves pulls. Owned by the loop.

    Args:
        view: Returns a record of the log.
        rules: Returns the rules in force.
        turns: Where pulls that are woken in great number wait for their turn.
    """

    def __init__(
        self,
        *,
        service: PullService,
        topics: TopicTable,
        groups: GroupTable,
        membership: Membership,
        offsets: OffsetTable,
        filters: Filters,
        view: Callable[[Position, int], memoryview | None],
        stats: BrokerStats,
        rules: Callable[[], PullRules],
        turns: Turns | None = None,
    ) -> None:
        self._service = service
        self._filters = filters
        self._view = view
        self._topics = topics
        self._groups = groups
        self._membership = membership
        self._offsets = offsets
        self._stats = stats
        self._rules = rules
        self._holds = LongPolls[Connection, _Waiting](resume=self._resume, turns=turns)

    def routes(self) -> Sequence[Route]:
        """Return the routes of both kinds of pull."""
        return [
            plain(
                RequestCode.PULL_MESSAGE,
                PullMessage,
                of_topic(SUB) + of_group(SUB, field="consumer_group"),
                self.pull,
            ),
            plain(
                RequestCode.LITE_PULL_MESSAGE,
                PullMessage,
                of_topic(SUB) + of_group(SUB, field="consumer_group"),
                self.pull,
            ),
        ]

    @property
    def held(self) -> int:
        """Number of waiting pulls."""
        return len(self._holds)

    def pull(self, connection: Connection, command: Command, header: PullMessage) -> None:
        """Answer a pull, or hold it."""
        rules = self._rules()
        group = self._check_group(connection, command, header, rules)
        topic = self._check_topic(header)
        wanted = self._wanted(header, group)
        waiting = _Waiting(command, header, topic, group)
        if header.sys_flag & sysflag.PULL_COMMIT_OFFSET and header.commit_offset >= 0:
            self._commit(connection, header)
        pulled = self._pull(header, wanted)
        suspend = header.sys_flag & sysflag.PULL_SUSPEND
        if pulled.code == ResponseCode.PULL_NOT_FOUND and suspend and header.suspend_timeout_millis:
            self._hold(connection, waiting, wanted, rules)
            return
        self._answer(connection.answer, waiting, pulled)

    def arrived(self, visible: list[Appended]) -> None:
        """Wake the pulls that wait for any of these messages."""
        queues = self._holds.queues
        if not queues:
            return
        arrivals: dict[tuple[str, int], list[Appended]] = {}
        for message in visible:
            key = (message.topic, message.queue_id)
            if key in queues:
                arrivals.setdefault(key, []).append(message)
        for key, messages in arrivals.items():
            self._holds.arrived(
                key,
                {message.tags_code for message in messages},
                partial(self._records, messages),
            )
        if arrivals:
            self._holds.go_on()

    def _records(self, messages: list[Appended]) -> list[memoryview]:
        views = (self._view(message.position, message.size) for message in messages)
        return [view for view in views if view is not None]

    def wake(self, topic: str, queue_id: int) -> None:
        """Run the held pulls of a queue again: its consumers are to go on elsewhere."""
        self._holds.wake((topic, queue_id))

    def connection_lost(self, connection: Connection) -> None:
        """Forget the pulls of a connection that is gone."""
        self._holds.drop(connection)

    def close(self) -> None:
        """Answer every held pull."""
        self._holds.wake_all()

    # Checks, in RocketMQ's order.

    def _check_group(
        self, connection: Connection, command: Command, header: PullMessage, rules: PullRules
    ) -> GroupConfig:
        if not rules.broker_readable:
            raise NoPermission("this broker is not readable: brokerPermission forbids it")
        if command.code == RequestCode.LITE_PULL_MESSAGE and not rules.lite_pull:
            raise NoPermission("lite pull is switched off on this broker: litePullMessageEnable")
        group = self._groups.find(header.consumer_group)
        if group is None:
            by = f"{connection.peer_text} cause=pull"
            group = self._groups.find_or_create(header.consumer_group, by=by)
        if group is None:
            raise group_not_exist(header.consumer_group)
        if not group.consume_enable:
            raise NoPermission(f"the group {header.consumer_group} is not allowed to consume")
        return group

    def _check_topic(self, header: PullMessage) -> TopicConfig:
        topic = self._topics.find(header.topic)
        if topic is None:
            raise TopicNotExist(f"the topic {header.topic!r} does not exist on this broker")
        if not topic.readable:
            raise NoPermission(f"the topic {header.topic} is not readable")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise InvalidParameter(
                f"queue {header.queue_id} of the topic {header.topic} cannot be read: "
                f"it has {topic.read_queue_nums} read queues"
            )
        return topic

    def _wanted(self, header: PullMessage, group: GroupConfig) -> _Wanted:
        if not header.sys_flag & sysflag.PULL_SUBSCRIPTION:
            subscription = self._subscription_of_group(header, group)
            if not subscription.is_tag:
                matcher = self._filters.of_group(
                    header.topic, header.consumer_group, header.sub_version
                )
                return _Wanted(matcher=matcher)
        elif header.expression_type not in (None, "", TAG):
            matcher = self._filters.check(header.expression_type, header.subscription)
            return _Wanted(matcher=matcher)
        else:
            subscription = self._subscription_in(header)
        if not subscription.takes_all:
            return _Wanted(tags=subscription.code_set or frozenset())
        retries = self._filters.of_retries(header.topic)
        return _EVERYTHING if retries is None else _Wanted(matcher=retries)

    def _subscription_in(self, header: PullMessage) -> Subscription:
        if len(header.subscription or "") > _EXPRESSION_LENGTH_MAX:
            raise SubscriptionParseFailed(
                f"the expression has more than {_EXPRESSION_LENGTH_MAX} characters"
            )
        return parse_tags(header.topic, header.subscription, version=header.sub_version)

    def _subscription_of_group(self, header: PullMessage, group: GroupConfig) -> Subscription:
        name = header.consumer_group
        members = self._membership.consumer_group(name)
        if members is None:
            raise SubscriptionNotExist(
                f"no consumer of the group {name} is known here; send a heartbeat first"
            )
        if members.is_broadcasting and not group.consume_broadcast_enable:
            raise NoPermission(f"the group {name} must not consume by broadcasting")
        if not self._groups.may_read(name, header.topic):
            raise NoPermission(f"the group {name} is forbidden to read the topic {header.topic}")
        subscription = members.subscriptions.get(header.topic)
        if subscription is None:
            raise SubscriptionNotExist(f"the group {name} does not subscribe to {header.topic}")
        if subscription.sub_version < header.sub_version:
            raise SubscriptionNotLatest(
                f"the subscription of the group {name} to {header.topic} is older than the pull"
            )
        return subscription

    # Reading, holding, answering.

    def _commit(self, connection: Connection, header: PullMessage) -> None:
        topic, group, offset = header.topic, header.consumer_group, header.commit_offset
        if is_own_offset(topic, group):  # nobody but the broker moves those
            return
        end = self._service.end(topic, header.queue_id)
        if offset > end:
            # The group would skip what is still to come; the pull itself is answered as usual.
            logger.warning(
                "commit refused: peer=%s topic=%s queue=%s group=%s offset=%s end=%s",
                connection.peer_text, topic, header.queue_id, group, offset, end,
            )  # fmt: skip
            return
        self._offsets.commit(topic, group, header.queue_id, offset)

    def _pull(self, header: PullMessage, wanted: _Wanted) -> Pulled:
        reset = self._offsets.take_reset(header.topic, header.consumer_group, header.queue_id)
        if reset is not None:
            return Pulled(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", reset, 0, reset, [])
        return self._service.pull(
            header.topic,
            header.queue_id,
            header.queue_offset,
            count_max=header.max_msg_nums,
            tags=wanted.tags,
            matcher=wanted.matcher,
            bytes_max=header.max_msg_bytes,
        )

    def _hold(
        self,
        connection: Connection,
        waiting: _Waiting,
        wanted: _Wanted,
        rules: PullRules,
    ) -> None:
        holds = self._holds
        weight = len(wanted.tags) + (0 if wanted.matcher is None else wanted.matcher.weight)
        if len(holds) >= rules.held_max or holds.tag_count + weight > _HELD_TAGS_MAX:
            raise SystemBusy(f"[OVERLOAD]{len(holds)} pulls wait already; try again later")
        mine = holds.count_of(connection)
        is_greedy = mine >= share(len(holds), rules.held_max, rules.held_of_one_max)
        if weight and not is_greedy:
            most = share(holds.tag_count, _HELD_TAGS_MAX, _HELD_TAGS_MAX)
            is_greedy = holds.weight_of(connection) + weight > most
        if is_greedy:
            raise SystemBusy(
                f"[OVERLOAD]{mine} pulls of this connection wait already; try again later, or "
                "spread them over more connections"
            )
        header = waiting.header
        _lighten(waiting.command, header)
        limit_ms = header.suspend_timeout_millis if rules.long_polling else rules.short_polling_ms
        if not waiting.command.flag & ONEWAY:
            connection.no_answer()
        self._holds.park(
            connection,
            (header.topic, header.queue_id),
            tags=wanted.tags,
            matcher=wanted.matcher,
            payload=waiting,
            seconds=min(max(limit_ms, 0), _SUSPEND_MS_MAX) / 1000,
        )

    def _resume(self, held: Held[Connection, _Waiting]) -> None:
        waiting, connection = held.payload, held.connection
        try:
            wanted = _Wanted(held.tags, held.matcher)
            self._answer(connection.send, waiting, self._pull(waiting.header, wanted))
        except Exception as error:
            # An arrival woke it: what goes wrong here must not fail the send that arrived.
            reply = refusal(connection, waiting.command, error)
            if not waiting.command.flag & ONEWAY:
                connection.send(encode_response(waiting.command, reply.code, remark=reply.remark))

    def _answer(self, send: Callable[..., None], waiting: _Waiting, pulled: Pulled) -> None:
        command, header, topic, group = waiting
        if command.flag & ONEWAY:
            return
        if pulled.code == ResponseCode.SUCCESS:
            self._stats.got(header.topic, header.consumer_group, pulled.message_count, pulled.size)
            self._offsets.note_pull(
                header.topic, header.consumer_group, header.queue_id, pulled.next_offset
            )
            if command.encoding == JSON:
                head = _FOUND % (
                    pulled.next_offset,
                    pulled.first,
                    pulled.end,
                    topic.topic_sys_flag,
                    group.group_sys_flag,
                    command.opaque,
                )
                views: list[Buffer] = list(pulled.views)
                send(encode_frame(JSON, head, pulled.size), *views)
                return
        else:
            self._stats.missed()
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            logger.info(
                "offset moved: topic=%s queue=%s group=%s asked=%s next=%s status=%s",
                header.topic,
                header.queue_id,
                header.consumer_group,
                header.queue_offset,
                pulled.next_offset,
                pulled.status,
            )
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(pulled.next_offset),
            "minOffset": str(pulled.first),
            "maxOffset": str(pulled.end),
            "topicSysFlag": str(topic.topic_sys_flag),
            "groupSysFlag": str(group.group_sys_flag),
        }
        head = encode_response(
            command, pulled.code, remark=pulled.status, fields=fields, body_bytes=pulled.size
        )
        send(head, *pulled.views)


def _lighten(command: Command, header: PullMessage) -> None:
    """Let go of what a held pull does not need: that may be megabytes, and it may wait long."""
    command.body = b""
    command.raw_fields = msgspec.Raw(b"")
    command.text_fields = {}
    command.remark = None
    command.sender_language = ""
    header.subscription = header.expression_type = None

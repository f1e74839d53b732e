"""A consumer's answers to operators' requests, which brokers relay.

    GET_CONSUMER_RUNNING_INFO        settings, subscriptions, queues in hand, rates
    GET_CONSUMER_STATUS_FROM_CLIENT  offsets, queue by queue
    CONSUME_MESSAGE_DIRECTLY         handle one message now and report the outcome

Members are named and spelled as in Java, including ``droped``, since tools read them.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

import msgspec

from rocketpost.client.consumer.assigned_queues import AssignedQueues
from rocketpost.client.consumer.owned_queue import OwnedQueue
from rocketpost.client.consumer.push.handlers import Consumed, Handlers
from rocketpost.client.consumer.push.orderly import Rollback, Suspend
from rocketpost.client.consumer.push.retry import Retry
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.session import Answer, Session, answer_request
from rocketpost.client.tally import Tally
from rocketpost.codec.bodies.client import ConsumerData
from rocketpost.codec.bodies.offset import encode_client_offsets
from rocketpost.codec.bodies.topic import queue_key
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.client import ConsumeDirectly, RunningInfoRequest
from rocketpost.codec.headers.offset import ConsumerStatus
from rocketpost.codec.lenient_json import encode, members
from rocketpost.codec.record import decode_record
from rocketpost.model.route import MessageQueue
from rocketpost.transport.connection import Connection

_MIB = 1024 * 1024


class _QueueInfo(msgspec.Struct, rename="camel", kw_only=True):
    cached_msg_count: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_size_in_mib: int = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    commit_offset: int = 0
    droped: bool = False
    last_consume_timestamp: int = 0
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    locked: bool = False
    standing: str = ""
    """Our own: why the queue makes no progress."""
    transaction_msg_count: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_min_offset: int = 0
    try_unlock_times: int = 0


class _TopicInfo(msgspec.Struct, kw_only=True):
    consumeFailedMsgs: int  # noqa: N815 - names of the wire
    consumeFailedTPS: float  # noqa: N815
    consumeOKTPS: float  # noqa: N815
    consumeRT: float  # noqa: N815
    pullRT: float  # noqa: N815
    pullTPS: float  # noqa: N815


class _Outcome(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=False):
    auto_commit: bool = True
    consume_result: str
    order: bool = False
    remark: str = ""
    spent_time_mills: int = 0


class Inspection:
    """Answers for one consumer. Belongs to the event loop.

    Args:
        session: The connections to brokers.
        group: The consumer group.
        describe: Returns our subscriptions.
        assigned_queues: The queues that are ours.
        handlers: The handlers of messages; None if the application polls.
        orderly: Whether a queue's messages are handled in order.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        describe: Callable[[], ConsumerData],
        assigned_queues: AssignedQueues,
        handlers: Handlers | None = None,
        orderly: bool = False,
    ) -> None:
        self._session = session
        self._group = group
        self._describe = describe
        self._handlers = handlers
        self._orderly = orderly
        self._assigned_queues = assigned_queues
        self._started_ms = time.time_ns() // 1_000_000
        session.on(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            self._running_info,
            takes=lambda command: command.read(RunningInfoRequest).consumer_group == group,
        )
        session.on(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            self._offsets,
            takes=lambda command: command.read(ConsumerStatus).group == group,
        )
        session.on(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            self._consume,
            takes=lambda command: command.read(ConsumeDirectly).consumer_group == group,
        )

    def _running_info(self, connection: Connection, command: Command) -> Answer:
        asked = command.read(RunningInfoRequest)
        if asked.consumer_group != self._group:
            return self._stranger(asked.consumer_group)
        queues = members(
            (
                queue_key(owned.queue),
                encode(_queue_info(owned, self._assigned_queues.standing(owned))),
            )
            for owned in self._assigned_queues.owned
        )
        parts = {
            "mqPopTable": msgspec.Raw(b"{}"),
            "mqTable": queues,
            "properties": self._properties(),
            "statusTable": {topic: self._topic_info(topic) for topic in self._topics()},
            "subscriptionSet": self._describe().subscription_data_set,
            "userConsumerInfo": msgspec.Raw(b"{}"),
        }
        if asked.jstack_enable:
            parts["jstack"] = _stacks()
        return Answer(body=encode(parts))

    def _offsets(self, connection: Connection, command: Command) -> Answer:
        asked = command.read(ConsumerStatus)
        if asked.group != self._group:
            return self._stranger(asked.group)
        offsets = {
            owned.queue: owned.committable
            for owned in self._assigned_queues.owned
            if owned.queue.topic == asked.topic and owned.committable is not None
        }
        return Answer(body=encode_client_offsets(offsets))

    def _consume(self, connection: Connection, command: Command) -> Answer | None:
        asked = command.read(ConsumeDirectly)
        if asked.consumer_group != self._group:
            return self._stranger(asked.consumer_group)
        if self._handlers is None:
            remark = "the consumer polls its messages, it has no handler"
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark=remark)
        record = decode_record(command.body)
        queue = MessageQueue(asked.broker_name or "", record.queue_id, record.topic)
        message = ReceivedMessage(record, queue)
        work = self._consume_now(connection, command, self._handlers, message)
        self._session.tasks.start(work, name=f"handle {record.message_id} directly")
        return None

    async def _consume_now(
        self,
        connection: Connection,
        command: Command,
        handlers: Handlers,
        message: ReceivedMessage,
    ) -> None:
        began = time.monotonic()
        result, remark = "CR_SUCCESS", ""
        try:
            if await handlers.handle_once(message) is Consumed.COMMIT:
                result = "CR_COMMIT"
        except Rollback as error:
            result, remark = "CR_ROLLBACK", str(error)
        except (Retry, Suspend) as error:
            result, remark = "CR_LATER", str(error)
        except Exception as error:
            result, remark = "CR_THROW_EXCEPTION", "".join(traceback.format_exception(error))
        spent = round((time.monotonic() - began) * 1000)
        listener = handlers.find(message.topic)
        outcome = _Outcome(
            auto_commit=listener is None or listener.auto_commit,
            consume_result=result,
            order=self._orderly,
            remark=remark,
            spent_time_mills=spent,
        )
        answer_request(connection, command, Answer(body=encode(outcome)))

    def _properties(self) -> dict[str, str]:
        return {
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMEORDERLY": "true" if self._orderly else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": self._describe().consume_type,
            "PROP_NAMESERVER_ADDR": ";".join(self._session.name_servers.addresses) + ";",
            "PROP_THREADPOOL_CORE_SIZE": str(self._handlers.concurrency if self._handlers else 0),
            "consumerGroup": self._group,
            "messageModel": self._describe().message_model,
        }

    def _topics(self) -> list[str]:
        return [subscription.topic for subscription in self._describe().subscription_data_set]

    def _topic_info(self, topic: str) -> _TopicInfo:
        done, failed = self._handlers.tallies(topic) if self._handlers else (Tally(), Tally())
        pulled = self._assigned_queues.tally(topic)
        now = time.monotonic()
        return _TopicInfo(
            consumeFailedMsgs=failed.total,
            consumeFailedTPS=failed.per_second(now=now),
            consumeOKTPS=done.per_second(now=now),
            consumeRT=done.mean_ms(now=now),
            pullRT=pulled.mean_ms(now=now),
            pullTPS=pulled.per_second(now=now),
        )

    def _stranger(self, group: str) -> Answer:
        remark = f"the group {group} is not consumed here"
        return Answer(code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _queue_info(owned: OwnedQueue, standing: str) -> _QueueInfo:
    tracker = owned.tracker
    if tracker is None:
        return _QueueInfo(
            droped=owned.dropped, last_pull_timestamp=owned.pulled_ms, standing=standing
        )
    return _QueueInfo(
        standing=standing,
        cached_msg_count=tracker.count,
        cached_msg_min_offset=tracker.committable if tracker.count else 0,
        cached_msg_max_offset=tracker.committable + tracker.span if tracker.count else 0,
        cached_msg_size_in_mib=tracker.bytes_held // _MIB,
        commit_offset=tracker.committable,
        droped=owned.dropped,
        last_pull_timestamp=owned.pulled_ms,
        last_consume_timestamp=owned.finished_ms,
        locked=owned.lock is not None and owned.lock.held,
        last_lock_timestamp=owned.lock.renewed_ms if owned.lock is not None else 0,
    )


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )

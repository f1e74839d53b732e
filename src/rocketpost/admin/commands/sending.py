"""Commands that send test messages: one, or many with the time of each."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import Final

import click

from rocketpost.admin.broker_processes import require_brokers
from rocketpost.admin.command import (
    Failure,
    admin_command,
    json_option,
    list_cluster_brokers,
    say,
    say_json,
    show_rows,
    topic_option,
)
from rocketpost.admin.render import Column, Table, json_line, queue_text
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient
from rocketpost.client.config import ProducerConfig
from rocketpost.client.message import Message, SendResult
from rocketpost.client.producer.producer import Producer
from rocketpost.errors import RocketpostError
from rocketpost.model.route import MessageQueue

_GROUP: Final = "mqadmin_producer"

_size = click.IntRange(1, 4 * 1024 * 1024)
_count = click.IntRange(1, 1_000_000)


def make_producer(admin: AdminClient, *, trace: bool = False) -> Producer:
    """Return a producer with the name servers and the time-out of the admin client."""
    shared = {
        field.name: getattr(admin.config, field.name) for field in dataclasses.fields(admin.config)
    }
    timeout = admin.config.call_timeout
    config = ProducerConfig(**shared, send_timeout=timeout, enable_trace=trace)
    return Producer(_GROUP, config=config)


_SENT: Final = Table(
    "%-32s  %-4s  %-20s    %s",
    [
        Column("#Broker Name", "brokerName"),
        Column("#QID", "queueId"),
        Column("#Send Result", "status"),
        Column("#MsgId", "msgId"),
    ],
)


@admin_command("sendMessage")
@topic_option
@click.option("-p", "--body", required=True, help="The body, as text.")
@click.option("-k", "--key", "keys", default="", help="Words to find it by, separated by spaces.")
@click.option("-c", "--tags", help="Its tag.")
@click.option("-b", "--broker", metavar="NAME", help="Name of the broker to send to.")
@click.option("-i", "--qid", "queue_id", type=click.IntRange(0), help="With -b: the queue.")
@click.option("-m", "--msgTraceEnable", "trace", type=bool, default=False, help="Write a trace.")
@json_option
async def send_message(
    admin: AdminClient,
    *,
    topic: str,
    body: str,
    keys: str,
    tags: str | None,
    broker: str | None,
    queue_id: int | None,
    trace: bool,
    as_json: bool,
) -> None:
    """Send one message."""
    if queue_id is not None and broker is None:
        raise click.UsageError("-i needs -b: Broker name must be set if the queue is chosen!")
    message = Message(topic, body.encode(), tags=tags, keys=keys)
    async with make_producer(admin, trace=trace) as producer:
        queue = None
        if broker is not None:
            queue = choose_queue(await producer.queues(topic), broker, queue_id)
        result = await producer.send(message, queue=queue)
    sent = result.queue
    row = (sent.broker_name, sent.queue_id, result.status.name, result.message_id)
    show_rows(_SENT, [row], as_json=as_json)


def choose_queue(queues: Sequence[MessageQueue], broker: str, queue_id: int | None) -> MessageQueue:
    """Return a queue of a broker; the first one if ``queue_id`` is None.

    Raises:
        Failure: There is no such queue.
    """
    for queue in queues:
        if queue.broker_name == broker and queue_id in (None, queue.queue_id):
            return queue
    places = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in queues)
    wanted = broker if queue_id is None else f"{broker}/{queue_id}"
    raise Failure(f"no queue {wanted} takes messages; there are: {places}")


@admin_command("sendMsgStatus")
@click.option("-b", "--brokerName", "broker", required=True, help="Name of the broker.")
@click.option("-s", "--messageSize", "size", type=_size, default=128, show_default=True)
@click.option("-c", "--count", type=_count, default=50, show_default=True)
@json_option
async def send_msg_status(
    admin: AdminClient, *, broker: str, size: int, count: int, as_json: bool
) -> None:
    """Send messages to a broker's own topic and show how long each takes."""
    await admin.cluster.broker_addresses(broker)
    await admin.cluster.route(broker)
    async with make_producer(admin) as producer:
        report = Report(as_json=as_json)
        queue = choose_queue(await producer.queues(broker), broker, None)
        await producer.send(Message(broker, b"x" * 16), queue=queue)  # the first send connects
        with report:
            for _ in range(count):
                started = time.perf_counter()
                result = await producer.send(Message(broker, b"x" * size), queue=queue)
                elapsed_ms = round((time.perf_counter() - started) * 1000)
                report.step(
                    f"rt={elapsed_ms}ms, SendResult={send_result_text(result)}",
                    ms=elapsed_ms,
                    status=result.status.name,
                    msgId=result.message_id,
                    queue=result.queue,
                    queueOffset=result.queue_offset,
                )


def send_result_text(result: SendResult) -> str:
    """Return the result of a send as Java prints it."""
    recall = result.recall_handle or "null"
    return (
        f"SendResult [sendStatus={result.status.name}, msgId={result.message_id}, "
        f"offsetMsgId={result.offset_id}, messageQueue={queue_text(result.queue)}, "
        f"queueOffset={result.queue_offset}, recallHandle={recall}]"
    )


_TIMES: Final = Table(
    "%-32s  %-4s  %-20s    %s",
    [
        Column("#Broker Name", "brokerName"),
        Column("#QID", "queueId"),
        Column("#Send Result", "sent", lambda sent: "true" if sent else "false"),
        Column("#RT", "ms"),
    ],
)


@admin_command("checkMsgSendRT")
@topic_option
@click.option("-a", "--amount", "count", type=_count, default=100, show_default=True)
@click.option("-s", "--size", type=_size, default=128, show_default=True)
@json_option
async def check_msg_send_rt(
    admin: AdminClient, *, topic: str, count: int, size: int, as_json: bool
) -> None:
    """Send messages to a topic's queues in turn and show how long each takes."""
    await admin.cluster.route(topic)  # a measurement must not create the topic
    rows: list[tuple[str, int, bool, int]] = []
    async with make_producer(admin) as producer:
        queues = await producer.queues(topic)
        for index in range(count):
            queue = queues[index % len(queues)]
            rows.append(await _measure_send(producer, queue, b"x" * size))
            if not as_json:
                say(_TIMES.text(rows) if index == 0 else _TIMES.line(rows[-1]))
    average = average_ms([row[3] for row in rows])
    if as_json:
        say_json({"sends": _TIMES.objects(rows), "averageMs": average})
    else:
        say(f"Avg RT: {average:.2f}")
    failed = sum(not row[2] for row in rows)
    if failed:
        raise Failure(f"{failed} of {count} messages were not sent")


async def _measure_send(
    producer: Producer, queue: MessageQueue, body: bytes
) -> tuple[str, int, bool, int]:
    started = time.perf_counter()
    try:
        await producer.send(Message(queue.topic, body), queue=queue)
        sent = True
    except RocketpostError as error:
        click.echo(f"note: {queue.broker_name}/{queue.queue_id}: {error}", err=True)
        sent = False
    elapsed_ms = round((time.perf_counter() - started) * 1000)
    return queue.broker_name, queue.queue_id, sent, elapsed_ms


def average_ms(times: Sequence[int]) -> float:
    """Return the average without the first send, which connects, unless it is the only one."""
    counted = times[1:] or times
    return sum(counted) / len(counted)


_ROUND_TRIPS: Final = Table(
    "%-24s  %-24s  %-4s  %-8s  %s",
    [
        Column("#Cluster Name", "cluster"),
        Column("#Broker Name", "brokerName"),
        Column("#RT", "ms", lambda value: f"{value:.2f}"),
        Column("#successCount", "sent"),
        Column("#failCount", "failed"),
    ],
)


@admin_command("clusterRT")
@click.option("-a", "--amount", "count", type=_count, default=100, show_default=True)
@click.option("-s", "--size", type=_size, default=128, show_default=True)
@click.option("-c", "--cluster", "cluster", metavar="NAME", help="Only this cluster.")
@click.option("-p", "--printAsTlog", "as_log", type=bool, default=False, help="Lines for a log.")
@click.option("-m", "--machineRoom", "room", default="noname", help="Name of the place, for -p.")
@click.option(
    "-i", "--interval", "seconds", type=click.FloatRange(0.1), default=10.0, show_default=True
)
@click.option("-r", "--rounds", type=click.IntRange(1), help="Number of rounds; without end.")
@json_option
async def cluster_rt(
    admin: AdminClient,
    *,
    count: int,
    size: int,
    cluster: str | None,
    as_log: bool,
    room: str,
    seconds: float,
    rounds: int | None,
    as_json: bool,
) -> None:
    """Send messages to every broker and show how long they take."""
    done = 0
    async with make_producer(admin) as producer:
        while True:
            await require_brokers(admin)
            rows = [
                (
                    where,
                    each.broker_name,
                    *await _time_sends(producer, each.broker_name, count, size),
                )
                for where, each in await list_cluster_brokers(admin, cluster)
            ]
            if as_json:
                say(json_line(_ROUND_TRIPS.objects(rows)))
            elif as_log:
                now = time.strftime("%Y-%m-%d %H:%M:%S")
                for where, broker, ms, _, _ in rows:
                    say(f"{now}|{room}|{where}|{broker}|{ms:.0f}")
            else:
                say(_ROUND_TRIPS.text(rows))
            done += 1
            if done == rounds:
                break
            await asyncio.sleep(seconds)
    if any(row[4] for row in rows):
        raise Failure("some messages were not sent; the notes say why")


async def _time_sends(
    producer: Producer, broker: str, count: int, size: int
) -> tuple[float, int, int]:
    """Return the average time of sends to a broker's own topic, and how many worked and failed."""
    try:
        queue = choose_queue(await producer.queues(broker), broker, None)
    except RocketpostError as error:
        click.echo(f"note: {broker}: {error}", err=True)
        return 0.0, 0, count
    measured = [await _measure_send(producer, queue, b"x" * size) for _ in range(count)]
    sent = sum(each[2] for each in measured)
    return average_ms([each[3] for each in measured]), sent, count - sent


COMMANDS: Final = [send_message, send_msg_status, check_msg_send_rt, cluster_rt]

"""The command ``queryMsgTraceById``: the history of a message from the traces of its clients."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Final

import click
import msgspec

from rocketpost.admin.command import admin_command, json_option, say, say_json
from rocketpost.admin.render import time_text_ms
from rocketpost.client.admin import AdminClient
from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.faults import NoMessage
from rocketpost.codec.trace import (
    EndTransactionTrace,
    MessageKind,
    Pub,
    RecallTrace,
    SubAfter,
    SubBefore,
    Trace,
    TraceOutcome,
    decode_traces,
)
from rocketpost.model.names import TRACE_TOPIC

_COUNT_MAX: Final = 64
_WIDTH: Final = 500  # never wraps lines, because scripts read them
OPEN_OUTCOME: Final = "not finished"


class Step(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One event in the history of a message."""

    time_ms: int
    """0 if the trace does not say."""
    what: str
    group: str
    client: str
    took_ms: int | None
    outcome: str
    detail: str


@admin_command("queryMsgTraceById", is_watchable=True)
@click.option(
    "-i", "--msgId", "message_id", required=True, help="The id that the producer created."
)
@click.option("-t", "--traceTopic", "topic", default=TRACE_TOPIC, show_default=True)
@click.option("-b", "--beginTimestamp", "begin_ms", type=int, default=0, help="Stored since (ms).")
@click.option("-e", "--endTimestamp", "end_ms", type=int, default=2**63 - 1, help="Until (ms).")
@click.option(
    "-c", "--maxNum", "count", type=click.IntRange(1, _COUNT_MAX), default=_COUNT_MAX,
    show_default=True, help="Trace messages to look at.",
)  # fmt: skip
@json_option
async def query_msg_trace_by_id(
    admin: AdminClient,
    *,
    message_id: str,
    topic: str,
    begin_ms: int,
    end_ms: int,
    count: int,
    as_json: bool,
) -> None:
    """Show the history of a message from the traces of its clients."""
    found = await admin.messages.by_key(
        topic, message_id, count_max=count, begin_ms=begin_ms, end_ms=end_ms
    )
    steps = build_timeline(found, message_id)
    if not steps:
        raise NoMessage(
            f"the topic {topic} has no trace of {message_id}; clients write traces only "
            "if tracing is on, with a short delay"
        )
    if as_json:
        say_json(steps)
    else:
        say(timeline_text(steps))


def build_timeline(messages: Iterable[ReceivedMessage], message_id: str) -> list[Step]:
    """Return the steps of one message that trace messages report, oldest first."""
    traces: dict[Trace, str] = {}
    for message in messages:  # a trace message can be stored twice
        host = message.born_host[0]
        for trace in decode_traces(message.body.decode("utf-8", "replace")):
            if trace.message_id == message_id:
                traces.setdefault(trace, host)
    begun = {t.request_id: t for t in traces if isinstance(t, SubBefore)}
    ended = {t.request_id for t in traces if isinstance(t, SubAfter)}
    steps = [
        _make_step(trace, host, begun)
        for trace, host in traces.items()
        if not (isinstance(trace, SubBefore) and trace.request_id in ended)
    ]
    return sorted(steps, key=lambda step: step.time_ms)


def timeline_text(steps: list[Step]) -> str:
    """Return the steps as a table."""
    from rich.console import Console  # slow to import, and few commands need it
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("#Time", "#What", "#Group", "#ClientHost", "#CostTimes", "#Status", "#Detail"):
        table.add_column(title, no_wrap=True, justify="right" if "Cost" in title else "left")
    for step in steps:
        table.add_row(
            time_text_ms(step.time_ms) if step.time_ms else "unknown",
            step.what,
            step.group,
            step.client,
            f"{step.took_ms}ms" if step.took_ms is not None else "",
            step.outcome,
            step.detail,
        )
    out = io.StringIO()
    Console(file=out, width=_WIDTH, highlight=False, markup=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _make_step(trace: Trace, host: str, begun: dict[str, SubBefore]) -> Step:
    match trace:
        case Pub():
            return _make_send_step(trace, host)
        case SubBefore():
            detail = _retry_text(trace)
            return _make_consume_step(trace.time_ms, trace.group, host, None, OPEN_OUTCOME, detail)
        case SubAfter():
            before = begun.get(trace.request_id)
            time_ms = before.time_ms if before else max(0, trace.time_ms - trace.cost_ms)
            group = before.group if before else trace.group
            outcome = "success" if trace.success else _code_name(TraceOutcome, trace.outcome)
            detail = _retry_text(before) if before else ""
            return _make_consume_step(time_ms, group, host, trace.cost_ms, outcome, detail)
        case EndTransactionTrace():
            detail = "asked by the broker" if trace.from_check else ""
            return Step(
                time_ms=trace.time_ms, what="EndTransaction", group=trace.group, client=host,
                took_ms=None, outcome=trace.state, detail=detail,
            )  # fmt: skip
        case RecallTrace():
            return Step(
                time_ms=trace.time_ms, what="Recall", group=trace.group, client=host,
                took_ms=None, outcome=_outcome_text(trace.success), detail="",
            )  # fmt: skip


def _make_send_step(trace: Pub, host: str) -> Step:
    parts = [trace.topic]
    parts += [f"on {trace.store_host}"] if trace.store_host else []
    parts += [f"{trace.body_bytes} bytes"]
    parts += [_code_name(MessageKind, trace.kind)] if trace.kind else []
    parts += [f"tags {trace.tags}"] if trace.tags else []
    parts += [f"keys {trace.keys}"] if trace.keys else []
    return Step(
        time_ms=trace.time_ms,
        what="Pub",
        group=trace.group,
        client=trace.client_host or host,
        took_ms=trace.cost_ms,
        outcome=_outcome_text(trace.success),
        detail=", ".join(parts),
    )


def _make_consume_step(
    time_ms: int, group: str, client: str, took_ms: int | None, outcome: str, detail: str
) -> Step:
    return Step(
        time_ms=time_ms, what="Sub", group=group, client=client, took_ms=took_ms,
        outcome=outcome, detail=detail,
    )  # fmt: skip


def _retry_text(trace: SubBefore) -> str:
    return f"retry {trace.retry_times}" if trace.retry_times else ""


def _outcome_text(success: bool) -> str:
    return "success" if success else "failed"


def _code_name(kind: type[MessageKind] | type[TraceOutcome], number: int) -> str:
    known = {int(each): each.name.lower().replace("_", " ") for each in kind}
    return known.get(number, f"code {number}")


COMMANDS: Final = [query_msg_trace_by_id]

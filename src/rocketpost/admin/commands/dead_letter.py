"""Commands that list, show, export and resend dead letters."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import click

from rocketpost.admin.body import body_text
from rocketpost.admin.broker_processes import require_brokers
from rocketpost.admin.command import (
    Failure,
    admin_command,
    check_body_form,
    json_option,
    parse_time_option,
    say,
    say_json,
    show_rows,
)
from rocketpost.admin.render import Column, Table, map_text, time_text_ms
from rocketpost.admin.report import Report
from rocketpost.client.admin import AdminClient, DeadLetter, Outcome, Resent, Selection
from rocketpost.client.admin.dead_letter import UNKNOWN_CAUSE
from rocketpost.codec.faults import NoMessage
from rocketpost.errors import ClientError, RouteNotFound
from rocketpost.model import properties as names
from rocketpost.model.hosts import host_text

F = TypeVar("F", bound=Callable[..., Any])

_group = click.option("-g", "--groupName", "group", required=True, help="Consumer group.")
_ids = click.option(
    "-i", "--msgId", "ids", default="", help="Ids of any kind, separated by commas."
)


def _selection_options(function: F) -> F:
    options = [
        _group,
        _ids,
        click.option("-k", "--msgKey", "keys", default="", help="Keys, separated by commas."),
        click.option("-t", "--topic", "topic", help="Topic that they were sent to."),
        click.option(
            "-b", "--beginTimestamp", "begin_ms", callback=parse_time_option, help="Dead since."
        ),
        click.option(
            "-e", "--endTimestamp", "end_ms", callback=parse_time_option, help="Dead until."
        ),
        click.option("-x", "--cause", "cause", help="Part of the cause, or unknown."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def make_selection(ids: str, keys: str, **others: Any) -> Selection:
    """Return the selection of dead letters that options describe."""
    return Selection(ids=_split_words(ids), keys=_split_words(keys), **others)


def _split_words(text: str) -> frozenset[str]:
    return frozenset(filter(None, (word.strip() for word in text.split(","))))


# List and show.

_LIST: Final = Table(
    "%-32s  %-32s  %-24s  %-23s  %5s  %-20s  %s",
    [
        Column("#Message ID", "msgId"),
        Column("#Dead Letter ID", "deadLetterId"),
        Column("#Topic", "topic", lambda topic: topic or "N/A"),
        Column("#Dead Since", "deadSince", time_text_ms),
        Column("#Times", "reconsumeTimes"),
        Column("#Keys", "keys", " ".join),
        Column("#Cause", "cause"),
    ],
)
_CAUSES: Final = Table(
    "%-8s  %-23s  %-23s  %s",
    [
        Column("#Count", "count"),
        Column("#First Dead Since", "firstDeadSince", time_text_ms),
        Column("#Last Dead Since", "lastDeadSince", time_text_ms),
        Column("#Cause", "cause"),
    ],
)


@admin_command("dlqList", is_watchable=True)
@_selection_options
@click.option(
    "-m", "--maxNum", "count", type=click.IntRange(1), default=1000, show_default=True, help="Most."
)
@click.option("-c", "--countByCause", "by_cause", is_flag=True, help="A line per cause.")
@json_option
async def dlq_list(
    admin: AdminClient,
    *,
    group: str,
    count: int,
    by_cause: bool,
    as_json: bool,
    **conditions: Any,
) -> None:
    """List the dead letters of a group."""
    await require_brokers(admin)
    if by_cause:
        letters = admin.dead_letters.read(group, make_selection(**conditions))
        show_rows(_CAUSES, cause_rows([letter async for letter in letters]), as_json=as_json)
        return
    rows: list[tuple[object, ...]] = []
    more = False
    async for letter in admin.dead_letters.read(group, make_selection(**conditions)):
        if len(rows) == count:
            more = True
            break
        message = letter.message
        rows.append(
            (
                message.message_id,
                letter.id,
                letter.topic,
                letter.dead_ms,
                message.reconsume_times,
                message.keys,
                letter.cause,
            )
        )
    show_rows(_LIST, rows, as_json=as_json)
    if more:
        click.echo(f"note: there are more than {count}; -m shows more of them", err=True)


def cause_rows(letters: Iterable[DeadLetter]) -> list[tuple[object, ...]]:
    """Return how often and when each kind of failure happened, the most frequent first."""
    found: dict[str, list[int]] = {}
    for letter in letters:
        failure = letter.message.last_failure
        kind = UNKNOWN_CAUSE if failure is None else failure.kind
        found.setdefault(kind, []).append(letter.dead_ms)
    commonest = sorted(found, key=lambda kind: (-len(found[kind]), kind))
    return [(len(found[kind]), min(found[kind]), max(found[kind]), kind) for kind in commonest]


@admin_command("dlqShow")
@_group
@click.option("-i", "--msgId", "ids", required=True, help="Ids of any kind, separated by commas.")
@click.option(
    "-f", "--bodyFormat", "charset", default="utf-8", callback=check_body_form, show_default=True
)
@json_option
async def dlq_show(
    admin: AdminClient, *, group: str, ids: str, charset: str, as_json: bool
) -> None:
    """Show dead letters with their bodies."""
    selection = Selection(ids=_split_words(ids))
    if not selection.ids:
        raise click.UsageError("-i names no id")
    await require_brokers(admin)
    found = [letter async for letter in admin.dead_letters.read(group, selection)]
    if not found:
        raise NoMessage(f"the group {group} has no dead letter with the id {ids}")
    if as_json:
        say_json([letter_members(letter) for letter in found])
        return
    say("\n\n".join(letter_text(letter, charset=charset) for letter in found))


def letter_text(letter: DeadLetter, *, charset: str) -> str:
    """Return a dead letter as text, a line per member."""
    message = letter.message
    lines = [
        ("Message ID", message.message_id),
        ("Dead Letter ID", letter.id),
        ("Origin Message ID", message.properties.get(names.ORIGIN_MESSAGE_ID, "N/A")),
        ("Topic", letter.topic or "N/A"),
        ("Tags", message.tags or ""),
        ("Keys", " ".join(message.keys)),
        ("Dead Since", time_text_ms(letter.dead_ms)),
        ("Cause", letter.cause),
        ("Born Timestamp", time_text_ms(message.born_ms)),
        ("Born Host", host_text(message.born_host)),
        ("Reconsume Times", str(message.reconsume_times)),
        ("Broker", message.queue.broker_name),
        ("Queue Offset", str(message.queue_offset)),
        ("Re-sent With ID", letter.resent_id),
        ("Properties", map_text(message.properties)),
        ("Message Body", body_text(message.body, charset)),
    ]
    return "\n".join(f"{name + ':':<20} {value}" for name, value in lines)


def letter_members(letter: DeadLetter) -> dict[str, object]:
    """Return a dead letter as plain values, with the body in base64."""
    message = letter.message
    return {
        "group": letter.group,
        "msgId": message.message_id,
        "deadLetterId": letter.id,
        "originMsgId": message.properties.get(names.ORIGIN_MESSAGE_ID),
        "topic": letter.topic,
        "tags": message.tags,
        "keys": message.keys,
        "deadSince": letter.dead_ms,
        "cause": letter.cause,
        "bornTimestamp": message.born_ms,
        "bornHost": host_text(message.born_host),
        "reconsumeTimes": message.reconsume_times,
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "resentMsgId": letter.resent_id,
        "flag": message.flag,
        "properties": message.properties,
        "body": base64.b64encode(message.body).decode(),
    }


# Export.


@admin_command("dlqExport")
@_selection_options
@click.option("-o", "--output", "path", metavar="FILE", help="Where to; stdout if not given.")
@json_option
async def dlq_export(
    admin: AdminClient, *, group: str, path: str | None, as_json: bool, **conditions: Any
) -> None:
    """Write dead letters as lines of JSON, bodies in base64."""
    await require_brokers(admin)
    count = 0
    with _export_to(path) as write:
        async for letter in admin.dead_letters.read(group, make_selection(**conditions)):
            write(json.dumps(letter_members(letter), ensure_ascii=False) + "\n")
            count += 1
    if path is not None:
        with Report(as_json=as_json) as report:
            text = f"{count} dead letters of {group} are in {path}"
            report.step(text, group=group, count=count, path=path)


@contextmanager
def _export_to(path: str | None) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes lines. A file gets its name when all of it is on disk."""
    if path is None:
        yield lambda text: say(text, nl=False)
        return
    part = Path(f"{path}.part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            yield file.write
            _sync(file)
        os.replace(part, path)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from error


def _sync(file: IO[str]) -> None:
    file.flush()
    os.fsync(file.fileno())


# Resend.


@admin_command("dlqResend")
@_selection_options
@click.option(
    "-d", "--dryRun", "--dry-run", "dry_run", is_flag=True, help="Only print what would be done."
)
@click.option("-r", "--rate", type=click.FloatRange(0.001), help="Limit of messages per second.")
@click.option(
    "-a",
    "--after",
    metavar="RUN",
    help="A run of this command that is known to be dead; its lock is not waited for.",
)
@json_option
async def dlq_resend(
    admin: AdminClient,
    *,
    group: str,
    dry_run: bool,
    rate: float | None,
    after: str | None,
    as_json: bool,
    **conditions: Any,
) -> None:
    """Send dead letters to their topics again, each at most once."""
    await require_brokers(admin)
    run = admin.session.client_id
    if not dry_run:
        click.echo(f"note: this run is {run}; if it is killed, continue with -a {run}", err=True)
    tally: Counter[Outcome] = Counter()

    def on_each(resent: Resent) -> None:
        tally[resent.outcome] += 1
        say(json.dumps(resent_members(resent)) if as_json else resent_text(resent))

    def on_wait() -> None:
        click.echo("note: another run has the lock, or was killed; waiting a minute", err=True)

    try:
        await admin.dead_letters.resend(
            group,
            make_selection(**conditions),
            dry_run=dry_run,
            rate=rate,
            after=after,
            on_each=on_each,
            on_wait=on_wait,
        )
    except (ClientError, asyncio.CancelledError) as error:
        if not isinstance(error, RouteNotFound) or tally[Outcome.SENT]:
            error.add_note(f"{tally[Outcome.SENT]} were sent; start the command again to continue")
        raise
    if not as_json:
        say(tally_text(tally))
    if tally[Outcome.REFUSED]:
        raise Failure(f"{tally[Outcome.REFUSED]} dead letters were not sent")


def resent_text(resent: Resent) -> str:
    """Return the outcome of resending a dead letter, on one line."""
    letter = resent.letter
    line = f"{resent.outcome.value:<13} {letter.id} {letter.topic or 'N/A'} {letter.resent_id}"
    return line + (f" {resent.reason}" if resent.reason else "")


def resent_members(resent: Resent) -> dict[str, object]:
    """Return the outcome of resending a dead letter, as plain values."""
    letter = resent.letter
    return {
        "outcome": resent.outcome.value,
        "deadLetterId": letter.id,
        "msgId": letter.message.message_id,
        "topic": letter.topic,
        "resentMsgId": letter.resent_id,
        "offsetMsgId": resent.offset_id,
        "reason": resent.reason,
    }


def tally_text(tally: Counter[Outcome]) -> str:
    """Return the number of dead letters with each outcome."""
    told = [f"{tally[outcome]} {outcome.value}" for outcome in Outcome if tally[outcome]]
    return ", ".join(told) or "no dead letter is selected"


COMMANDS: Final = [dlq_list, dlq_show, dlq_export, dlq_resend]

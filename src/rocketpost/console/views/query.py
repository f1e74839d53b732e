"""The log as a table: SQL over the messages of a topic between two times."""

from __future__ import annotations

import csv
import io
import time
from typing import Final

import msgspec
from starlette.responses import Response

from rocketpost.client.message import ReceivedMessage
from rocketpost.console.pages import Page
from rocketpost.console.query.table import ROWS_MAX, QueryResult, ask_worker, make_row
from rocketpost.console.query.worker import COLUMNS
from rocketpost.console.shapes import parse_moment, safe_cell
from rocketpost.console.views.scan import Limits, scan_topic
from rocketpost.console.visit import BadInputError, Visit
from rocketpost.errors import RouteNotFound
from rocketpost.model.names import topic_problem

LIMITS: Final = Limits(matches=10**9, messages=50_000, payload_bytes=32 * 1024 * 1024, seconds=10.0)
EXAMPLES: Final = (
    "SELECT * FROM messages ORDER BY store_ms DESC LIMIT 20",
    "SELECT tags, count(*) AS messages, sum(size) AS bytes FROM messages "
    "GROUP BY tags ORDER BY messages DESC",
    "SELECT substr(time, 1, 16) AS minute, count(*) AS messages FROM messages GROUP BY 1",
    "SELECT host, count(*) FROM messages GROUP BY host ORDER BY 2 DESC",
    "SELECT id, json_extract(body, '$.amount') AS amount FROM messages "
    "WHERE json_valid(body) ORDER BY amount DESC LIMIT 20",
)


class QueryPage(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of the page."""

    topic: str
    sql: str
    scanned: int = 0
    total: int = 0
    queues: int = 0
    stopped: str = ""
    problems: dict[str, str] = {}
    result: QueryResult | None = None


async def show_query(visit: Visit) -> Page | Response:
    """Answer a query, or show the form."""
    topic = visit.query("topic")
    sql = visit.query("sql", length_max=10_000)
    data = QueryPage(topic=topic, sql=sql)
    problem = ""
    if topic and sql:
        try:
            await _answer(visit, data)
        except (BadInputError, RouteNotFound) as error:
            problem = str(error)
    if data.result is not None:
        problem = data.result.problem
        if visit.query("format") == "csv" and not problem:
            return _csv(data.result)
    names = sorted(
        name
        for name, each in visit.cluster.collector.snapshot.topics.items()
        if each.kind not in ("system", "retry")
    )
    return Page(
        template="query.html",
        title=visit.text("nav.query"),
        data=data,
        status=400 if problem else 200,
        command=visit.command("printMsg", "-t", topic) if topic else "",
        values={
            "problem": problem,
            "topics": names[:2000],
            "columns": tuple(COLUMNS),
            "examples": EXAMPLES,
            "rows_max": ROWS_MAX,
            "snippet": _snippet(visit, topic),
            "limits": LIMITS,
        },
    )


async def _answer(visit: Visit, data: QueryPage) -> None:
    """Read the messages and run the query over them.

    Raises:
        BadInputError: A time is malformed.
        RouteNotFound: There is no such topic.
    """
    if problem := topic_problem(data.topic):
        raise BadInputError(problem)
    rows: list[bytes] = []
    masks, with_body = visit.services.config.masks, visit.reads_bodies

    def keep(message: ReceivedMessage) -> bool:
        rows.append(make_row(message, masks, with_body=with_body))
        return False  # the row is all that is needed

    async with visit.services.scans:
        scan = await scan_topic(
            visit.admin,
            data.topic,
            keep,
            begin_ms=_moment(visit, "begin", "-1h"),
            end_ms=_moment(visit, "end", "now"),
            start={},
            limits=LIMITS,
        )
        data.result = await ask_worker(data.sql, rows)
    data.scanned, data.total, data.queues = scan.scanned, scan.total, scan.queues
    data.stopped, data.problems = scan.stopped, scan.problems
    assert visit.session is not None
    await visit.services.audit.record(
        user=visit.session.user.name,
        address=visit.address,
        act="query",
        what=f"{data.topic}: {data.sql}"[:300],
        outcome=data.result.problem or f"{len(data.result.rows)} rows of {scan.scanned} messages",
    )


def _moment(visit: Visit, name: str, default: str) -> int:
    try:
        return parse_moment(visit.query(name) or default, now_ms=time.time_ns() // 1_000_000)
    except (ValueError, OverflowError):
        raise BadInputError(visit.text("error.time", field=name)) from None


def _csv(result: QueryResult) -> Response:
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(map(safe_cell, result.columns))
    for row in result.rows:
        writer.writerow(
            ["" if cell is None else safe_cell(cell) if isinstance(cell, str) else cell
             for cell in row]
        )  # fmt: skip
    return Response(
        file.getvalue(),
        media_type="application/octet-stream",
        headers={"content-disposition": 'attachment; filename="query.csv"'},
    )


def _snippet(visit: Visit, topic: str) -> str:
    """Return the beginning of the same work in Spark, for more messages than fit here."""
    return (
        'messages = (spark.read.format("rocketmq")\n'
        f'    .option("nameServer", {visit.cluster.name!r})\n'
        f'    .option("topic", {topic or "TOPIC"!r}).load())\n'
        'messages.createOrReplaceTempView("messages")'
    )

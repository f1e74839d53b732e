"""Messages of a topic as rows for a query, and the call of the child that answers it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rocketpost.client.message import ReceivedMessage
from rocketpost.console.bodies import mask_paths, show_body
from rocketpost.console.query import worker
from rocketpost.console.shapes import moment_text
from rocketpost.errors import RemoteProtocolError

ROWS_MAX: Final = 1000
SECONDS_MAX: Final = 5.0
BODY_BYTES_MAX: Final = 64 * 1024
_CHILD_SECONDS: Final = 30.0
_WORKER: Final = Path(worker.__file__)


class QueryResult(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to a query."""

    columns: list[str] = []
    rows: list[list[Any]] = []
    is_cut: bool = False
    problem: str = ""


def make_row(message: ReceivedMessage, masks: Sequence[str], *, with_body: bool) -> bytes:
    """Return the cells of a message as JSON, in the order of the worker's columns. Pure."""
    cells = [
        moment_text(message.store_ms, "utc"),
        message.store_ms,
        message.born_ms,
        message.record.topic,
        message.queue.broker_name,
        message.record.queue_id,
        message.queue_offset,
        message.message_id,
        message.offset_id,
        message.tags or "",
        " ".join(message.keys),
        message.born_host[0],
        message.record.size,
        message.reconsume_times,
        json.dumps(message.properties, ensure_ascii=False),
        _body_text(message, masks) if with_body else None,
    ]
    return msgspec.json.encode(cells)


async def ask_worker(sql: str, rows: list[bytes]) -> QueryResult:
    """Let a child answer a query over rows; it ends with the answer, or is killed.

    Args:
        sql: The query.
        rows: What :func:`make_row` has returned; the list is emptied, to save memory.
    """
    wish = msgspec.json.encode({"sql": sql, "seconds": SECONDS_MAX, "rows_max": ROWS_MAX})
    data = b'%s,"rows":[%s]}' % (wish[:-1], b",".join(rows))
    rows.clear()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(_WORKER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
        cwd="/",
    )
    try:
        async with asyncio.timeout(_CHILD_SECONDS):
            output, _ = await child.communicate(data)
        return msgspec.json.decode(output, type=QueryResult)
    except TimeoutError:
        return QueryResult(problem=f"the query took longer than {_CHILD_SECONDS:g} s")
    except msgspec.DecodeError:
        return QueryResult(problem="the query needs more memory or time than it may have")
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def _body_text(message: ReceivedMessage, masks: Sequence[str]) -> str | None:
    """Return a body as text; None if it is not text, or is not shown."""
    if mask_paths(masks, message):
        return show_body(message, "json", masks).text
    try:
        return message.body[:BODY_BYTES_MAX].decode("utf-8")
    except (RemoteProtocolError, UnicodeDecodeError):
        return None

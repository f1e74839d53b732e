"""The child that answers a query: SQLite in memory, which may read one table and nothing else.

It is run as a program with the standard library alone. It reads one JSON object (``sql``, ``rows``,
``seconds``, ``rows_max``) from its standard input and writes one to its standard output. The system
limits its memory, its time and its files; SQLite refuses every statement but SELECT.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
import time
from typing import Any

COLUMNS = {
    "time": "TEXT",
    "store_ms": "INTEGER",
    "born_ms": "INTEGER",
    "topic": "TEXT",
    "broker": "TEXT",
    "queue": "INTEGER",
    "offset": "INTEGER",
    "id": "TEXT",
    "offset_id": "TEXT",
    "tags": "TEXT",
    "keys": "TEXT",
    "host": "TEXT",
    "size": "INTEGER",
    "retries": "INTEGER",
    "properties": "TEXT",
    "body": "TEXT",
}
"""Columns of the table ``messages``, with their types."""

MEMORY_BYTES_MAX = 768 * 1024 * 1024
VALUE_BYTES_MAX = 8 * 1024 * 1024
_CPU_SECONDS_MAX = 30
_STEPS = 10_000
_ONLY_SELECT = "only SELECT on the table messages is answered"
_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)


def run_query(wish: dict[str, Any]) -> dict[str, Any]:
    """Return the columns and rows of a query, or the problem with it."""
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA temp_store = MEMORY")  # it may write no file, nor large sorts
    names = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items())
    connection.execute(f"CREATE TABLE messages ({names})")
    places = ", ".join("?" * len(COLUMNS))
    connection.executemany(f"INSERT INTO messages VALUES ({places})", wish["rows"])  # noqa: S608
    connection.commit()
    deadline = time.monotonic() + wish["seconds"]
    connection.set_authorizer(_authorize)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    count_max = wish["rows_max"]
    try:
        cursor = connection.execute(wish["sql"])
        if cursor.description is None:
            return {"problem": _ONLY_SELECT}
        found = cursor.fetchmany(count_max + 1)
    except sqlite3.Error as error:
        late = time.monotonic() > deadline
        text = f"the query took longer than {wish['seconds']} s" if late else _describe(error)
        return {"problem": text}
    except sqlite3.Warning as error:  # two statements in one
        return {"problem": str(error)}
    except MemoryError:
        return {"problem": "the query needs more memory than it may have"}
    finally:
        connection.close()
    return {
        "columns": [each[0] for each in cursor.description],
        "rows": [[_plain(value) for value in row] for row in found[:count_max]],
        "isCut": len(found) > count_max,
    }


def _describe(error: sqlite3.Error) -> str:
    # SQLite names no reason when the authorizer refuses a statement.
    return _ONLY_SELECT if str(error) == "not authorized" else str(error)


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _limit_process() -> None:
    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES_MAX),
        (resource.RLIMIT_CPU, _CPU_SECONDS_MAX),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


def main() -> None:
    """Answer the query of the standard input."""
    _limit_process()
    try:
        answer = run_query(json.load(sys.stdin.buffer))
    except MemoryError:
        answer = {"problem": "the query needs more memory than it may have"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()

"""Queries over messages: SELECT alone, bounded in rows, time and size; files are out of reach."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rocketpost.console.query.worker import COLUMNS, run_query


def make_row(**cells: Any) -> list[Any]:
    return [cells.get(name, 0 if kind == "INTEGER" else "") for name, kind in COLUMNS.items()]


ROWS = [
    make_row(tags="paid", size=10, body='{"amount": 5}'),
    make_row(tags="paid", size=20, body='{"amount": 7}'),
    make_row(tags="open", size=5, body="<script>"),
]


def ask(sql: str, **more: Any) -> dict[str, Any]:
    return run_query({"sql": sql, "rows": ROWS, "seconds": 5.0, "rows_max": 100} | more)


def test_messages_are_grouped_and_bodies_are_taken_apart() -> None:
    answer = ask("SELECT tags, count(*) AS n, sum(size) FROM messages GROUP BY tags ORDER BY n")
    assert answer["columns"] == ["tags", "n", "sum(size)"]
    assert answer["rows"] == [["open", 1, 5], ["paid", 2, 30]]
    amounts = ask(
        "WITH paid AS (SELECT * FROM messages WHERE tags = 'paid') "
        "SELECT sum(json_extract(body, '$.amount')) FROM paid"
    )
    assert amounts["rows"] == [[12]]


def test_the_query_of_the_guide_is_answered() -> None:
    guide = Path(__file__).parents[4] / "docs" / "guide" / "console.md"
    (sql,) = re.findall(r"```\n(SELECT .*?)```", guide.read_text(), re.DOTALL)
    assert ask(sql)["rows"] == [["paid", 2, 12]]


def test_rows_are_cut() -> None:
    answer = ask("SELECT id FROM messages", rows_max=2)
    assert len(answer["rows"]) == 2
    assert answer["isCut"]
    assert not ask("SELECT id FROM messages", rows_max=3)["isCut"]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM messages",
        "DROP TABLE messages",
        "CREATE TABLE other (x)",
        "ATTACH '/etc/passwd' AS other",
        "PRAGMA database_list",
        "SELECT 1; SELECT 2",
        "SELECT load_extension('x')",
        "VACUUM INTO '/tmp/x'",
        "BEGIN",
        "SELECT FROM",
        "",
    ],
)
def test_nothing_but_select_is_answered(sql: str) -> None:
    assert ask(sql)["problem"]


def test_a_refusal_says_what_is_answered() -> None:
    for sql in ("DELETE FROM messages", "PRAGMA database_list", "-- nothing"):
        assert ask(sql)["problem"] == "only SELECT on the table messages is answered"


def test_a_query_ends_in_time_and_makes_no_large_values() -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
    assert "longer" in ask(endless, seconds=0.05)["problem"]
    assert "too big" in ask("SELECT zeroblob(100000000)")["problem"]
    assert ask("SELECT x'00ff'")["rows"] == [["00ff"]]

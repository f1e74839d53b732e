"""The child that answers queries is a process of its own, with limits."""

from __future__ import annotations

import json

from rocketpost.console.query.table import ask_worker
from rocketpost.console.query.worker import COLUMNS


async def test_the_child_answers() -> None:
    row = json.dumps(["" for _ in COLUMNS]).encode()
    answer = await ask_worker("SELECT count(*) AS messages FROM messages", [row, row])
    assert (answer.columns, answer.rows, answer.problem) == (["messages"], [[2]], "")


async def test_the_child_sorts_much_without_files() -> None:
    rows = [json.dumps([f"{number:0300}" for _ in COLUMNS]).encode() for number in range(5000)]
    answer = await ask_worker("SELECT time, id FROM messages ORDER BY body DESC, keys", rows)
    assert answer.problem == ""
    assert answer.rows[0][0] == f"{4999:0300}"
    assert answer.is_cut


async def test_the_child_tells_problems() -> None:
    assert "no such column" in (await ask_worker("SELECT amount FROM messages", [])).problem


async def test_the_child_has_little_memory() -> None:
    sql = (
        "WITH RECURSIVE n(x, y) AS (SELECT 1, randomblob(4000000) "
        "UNION ALL SELECT x + 1, randomblob(4000000) FROM n WHERE x < 1000) "
        "SELECT group_concat(y) FROM (SELECT * FROM n ORDER BY y)"
    )
    assert (await ask_worker(sql, [])).problem

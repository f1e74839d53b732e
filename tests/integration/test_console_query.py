"""The log as a table: queries through the console, rights, masks, and what is recorded."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from urllib.parse import urlencode

import pytest

from rocketpost.client import Message, Producer
from rocketpost.testing.cluster import Cluster

from .console_client import make_first_user, run_console
from .test_console_actions import invite

pytestmark = pytest.mark.slow


async def test_messages_are_queried_by_sql(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "cluster") as cluster,
        run_console(cluster.addresses, tmp_path / "state", "--mask", "Sold:card") as console,
    ):
        async with Producer("shop", name_servers=cluster.addresses) as producer:
            for number in range(40):
                body = b'{"amount": %d, "card": "4711"}' % number
                tag = "paid" if number % 4 else "=open"
                await producer.send(Message("Sold", body, tags=tag, keys=f"k{number}"))
            await producer.send(Message("Sold", b"\xff\x00", tags="binary"))
        browser = make_first_user(console)

        def ask(sql: str, **more: str) -> str:
            return f"/query?{urlencode({'topic': 'Sold', 'sql': sql, **more})}"

        sql = (
            "SELECT tags, count(*) AS n, sum(json_extract(body, '$.amount')) AS amount "
            "FROM messages WHERE json_valid(body) GROUP BY tags ORDER BY n DESC"
        )
        page = browser.json(ask(sql))
        assert page["result"]["rows"] == [["paid", 30, 600], ["=open", 10, 180]]
        assert (page["scanned"], page["stopped"]) == (41, "")
        rows = list(csv.reader(io.StringIO(browser.get(ask(sql, format="csv")).text)))
        assert rows[2] == ["'=open", "10", "180"]
        assert "4711" not in browser.get(ask("SELECT body FROM messages")).text
        assert browser.get(ask("SELECT body FROM messages")).text.count("•••") >= 40
        for bad in ("DELETE FROM messages", "SELECT nothing FROM messages"):
            assert browser.get(ask(bad)).status == 400
        assert browser.get(ask("SELECT 1", begin="soon")).status == 400
        assert browser.get("/query").status == 200
        viewer = invite(console, browser, "vera", "viewer")
        found = viewer.json(ask("SELECT count(body), count(*) FROM messages"))
        assert found["result"]["rows"] == [[0, 41]]  # bodies are a right of their own
        line = next(row for row in browser.json("/audit")["rows"] if row["act"] == "query")
        assert line["what"].startswith("Sold: SELECT count(body)")

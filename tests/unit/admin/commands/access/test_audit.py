"""The table of ``mqadmin auditLog``, from the lines that servers answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

import pytest
from click.testing import CliRunner, Result

from rocketpost.admin import command
from rocketpost.admin.commands.access.audit import COMMANDS
from rocketpost.client.admin.access import AuditLine
from rocketpost.codec.faults import NoPermission

Question = tuple[str, int, str, str]
"""Address, number of lines, event and user."""


class FakeAdmin:
    """Answers for the audit logs of some servers, as one cluster."""

    def __init__(self, logs: Mapping[str, list[AuditLine]]) -> None:
        self._logs = logs
        self.asked: list[Question] = []
        self.access = self.cluster = self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def masters(self, cluster: str) -> list[str]:
        assert cluster == "C"
        return list(self._logs)

    async def audit(self, address: str, *, count: int, event: str, user: str) -> list[AuditLine]:
        self.asked.append((address, count, event, user))
        if address not in self._logs:
            raise NoPermission("only a super user may read the audit log")
        return self._logs[address]


def run(monkeypatch: pytest.MonkeyPatch, admin: FakeAdmin, *args: str) -> Result:
    monkeypatch.setattr(command, "AdminClient", lambda *, config: admin)
    return CliRunner().invoke(COMMANDS[0], ["-n", "ns:1", *args])


def what(monkeypatch: pytest.MonkeyPatch, line: AuditLine) -> str:
    done = run(monkeypatch, FakeAdmin({"b:1": [line]}), "-b", "b:1", "--json")
    [row] = json.loads(done.stdout)
    assert (row["at"], row["event"]) == (line.at, line.event)
    return str(row["what"])


def test_lines_of_all_servers_are_shown_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = AuditLine(
        at="2026-11-18T03:04:05.678Z",
        event="userChanged",
        user="root",
        source="10.0.0.7",
        target="norm",
        result="ok",
        change="password",
    )
    denied = AuditLine(at="2026-11-18T03:04:04.000Z", event="denied", user="norm", reason="no rule")
    admin = FakeAdmin({"b:1": [changed], "b:2": [denied]})
    done = run(monkeypatch, admin, "-c", "C")
    assert done.exit_code == 0, done.output
    heading, first, second = done.stdout.splitlines()
    assert heading.split() == [
        "#Time", "#Event", "#User", "#Source", "#Target", "#Result", "#What",
    ]  # fmt: skip
    assert first.split() == [denied.at, "denied", "norm", "no", "rule"]
    assert second.split() == [
        changed.at, "userChanged", "root", "10.0.0.7", "norm", "ok", "password",
    ]  # fmt: skip
    assert heading.index("#What") == first.index("no rule") == second.index("password")
    assert admin.asked == [("b:1", 50, "", ""), ("b:2", 50, "", "")]


def test_the_server_is_asked_for_the_lines_that_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = FakeAdmin({"b:1": []})
    done = run(monkeypatch, admin, "-b", "b:1", "-l", "200", "-e", "denied", "-u", "orders")
    assert (done.exit_code, done.stdout) == (0, "")
    assert admin.asked == [("b:1", 200, "denied", "orders")]
    assert run(monkeypatch, admin, "-b", "b:1", "-l", "1001").exit_code == 2


def test_no_lines_are_an_empty_list_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, FakeAdmin({"b:1": []}), "-b", "b:1", "--json")
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (AuditLine(at="1", event="userChanged", change="password"), "password"),
        (AuditLine(at="1", event="loginFailed", reason="bad signature"), "bad signature"),
        (AuditLine(at="1", event="denied", code=310, reason="no rule"), "request 310: no rule"),
        (AuditLine(at="1", event="denied", code=0, reason="no rule"), "request 0: no rule"),
        (AuditLine(at="1", event="denied", code="Ack", reason="no"), "request Ack: no"),
        (AuditLine(at="1", event="denied", left_out=7), "7 more of them within a minute"),
        (AuditLine(at="1", event="dropped", count=5), "5 lines were not written"),
    ],
)
def test_the_last_column_says_what_was_asked_and_why_it_was_refused(
    monkeypatch: pytest.MonkeyPatch, line: AuditLine, text: str
) -> None:
    assert what(monkeypatch, line) == text


def test_a_refusal_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, FakeAdmin({}), "-b", "b:1")
    assert done.exit_code == 1
    assert done.stderr == (
        "mqadmin: b:1: refused with code 16: only a super user may read the audit log\n"
    )

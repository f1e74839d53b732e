"""Settings: who sees and changes which users and sessions, and the lines of the audit log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.requests import Request

from rocketpost.console.access.accounts import Accounts
from rocketpost.console.access.users import Role, User, UserFile
from rocketpost.console.actions.audit_log import AuditLog
from rocketpost.console.catalogue import load_catalogue
from rocketpost.console.config import ConsoleConfig
from rocketpost.console.views.settings import (
    end_session,
    invite_user,
    remove_user,
    show_settings,
)
from rocketpost.console.visit import BadInputError, ForbiddenError, Services, Visit

CATALOGUE = load_catalogue()


class Console:
    """A console with three users; each has a session, which began a second after the one before."""

    def __init__(self, state: Path) -> None:
        self.now = 1000.0
        self.users_path = state / "users.json"
        self.audit = AuditLog(state / "audit.jsonl")
        self.accounts = Accounts(self.users_path, clock=lambda: self.now)
        self.tokens: dict[str, str] = {}
        for name, role in (("ada", "admin"), ("bob", "viewer"), ("eve", "operator")):
            user = User(name=name, role=role, password="scrypt$hidden", made_ms=7)
            self.accounts.users.put(user)
            self.now += 1
            self.tokens[name] = self.accounts.sessions.begin(
                user, address=f"10.0.0.{len(self.tokens)}", agent="test"
            )
        unused = SimpleNamespace()
        self.services = Services(
            config=ConsoleConfig(clusters=("n:1",), masks=("Orders:card",)),
            catalogue=CATALOGUE,
            reasons=cast(Any, unused),
            accounts=self.accounts,
            clusters=[],
            audit=self.audit,
            plans=cast(Any, unused),
            jobs=cast(Any, unused),
            port=8088,
        )

    def visit(self, name: str, /, **form: str) -> Visit:
        """Return a visit of a user, with the fields of a form."""
        scope = {
            "type": "http", "path": "/settings", "query_string": b"", "headers": [],
            "client": ("10.0.0.9", 1),
        }  # fmt: skip
        session = self.accounts.sessions.find(self.tokens[name], is_automatic=True)
        return Visit(Request(scope), self.services, "en", session, form)

    def session_id(self, name: str) -> str:
        session = self.accounts.sessions.find(self.tokens[name], is_automatic=True)
        assert session is not None
        return session.id

    def has_session(self, name: str) -> bool:
        return self.accounts.sessions.find(self.tokens[name], is_automatic=True) is not None

    def acts(self) -> list[tuple[str, str, str]]:
        """Return the acts of the audit log, the oldest first."""
        return [(each.user, each.act, each.what) for each in reversed(self.audit.newest(100))]


@pytest.fixture
def console(tmp_path: Path) -> Console:
    return Console(tmp_path)


async def test_an_administrator_sees_all_users_and_sessions(console: Console) -> None:
    page = await show_settings(console.visit("ada"))
    assert (page.template, page.title) == ("settings.html", "Settings")
    assert page.values == {"new_link": "", "invited": ""}
    assert page.data["masks"] == ["Orders:card"]
    assert page.data["users"][1] == {
        "name": "bob", "role": "viewer", "readsBodies": True, "madeMs": 7
    }  # fmt: skip
    assert [each.user for each in page.data["sessions"]] == ["eve", "bob", "ada"]
    assert [each.is_this for each in page.data["sessions"]] == [False, False, True]
    assert "hidden" not in str(page.data)


@pytest.mark.parametrize("name", ["bob", "eve"])
async def test_others_see_their_own_sessions_and_no_users(console: Console, name: str) -> None:
    user = console.accounts.users.find(name)
    assert user is not None
    console.now += 1
    console.accounts.sessions.begin(user, address="10.0.0.7", agent="other")
    page = await show_settings(console.visit(name))
    assert page.data["users"] == []
    assert [(each.user, each.agent, each.is_this) for each in page.data["sessions"]] == [
        (name, "other", False),
        (name, "test", True),
    ]


async def test_the_age_of_a_session_is_shown(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.accounts.sessions.find(console.tokens["bob"])  # seen now, two seconds after it began
    console.now += 10
    clock = SimpleNamespace(monotonic=lambda: console.now)
    monkeypatch.setattr("rocketpost.console.views.settings.time", clock)
    [row] = (await show_settings(console.visit("bob"))).data["sessions"]
    assert (row.began_seconds, row.seen_seconds) == (11.0, 10.0)
    assert (row.id, row.address) == (console.session_id("bob"), "10.0.0.1")


@pytest.mark.parametrize(
    ("form", "role", "reads"),
    [
        ({"role": "operator", "bodies": "1"}, Role.OPERATOR, True),
        ({"role": "admin"}, Role.ADMIN, False),
        ({"role": "emperor", "bodies": "yes"}, Role.VIEWER, False),
    ],
)
async def test_the_link_for_a_new_user_has_the_chosen_rights(
    console: Console, form: dict[str, str], role: Role, reads: bool
) -> None:
    page = await invite_user(console.visit("ada", name=" dan ", **form))
    link = urlsplit(page.values["new_link"])
    assert (link.scheme, link.netloc, link.path) == ("http", "127.0.0.1:8088", "/invitation")
    [token] = parse_qs(link.query)["token"]
    found = console.accounts.invitations.find(token)
    assert found is not None
    assert (found.name, found.role, found.reads_bodies) == ("dan", role, reads)
    assert page.values["invited"] == "dan"
    assert console.acts() == [("ada", "invite user", f"dan as {role.word}")]
    assert token not in console.audit.path.read_text()


@pytest.mark.parametrize("name", ["", "no blanks", "-dan", "x" * 65])
async def test_a_name_of_another_form_is_refused(console: Console, name: str) -> None:
    with pytest.raises(BadInputError, match="up to 64 letters"):
        await invite_user(console.visit("ada", name=name))
    with pytest.raises(BadInputError, match="201 > 200"):
        await invite_user(console.visit("ada", name="x" * 201))
    assert console.acts() == []


async def test_a_removed_user_is_gone_from_the_file_and_logged_out(console: Console) -> None:
    answer = await remove_user(console.visit("ada", name="bob"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/settings")
    stored = UserFile(console.users_path)
    stored.load_blocking()
    assert [each.name for each in stored.list()] == ["ada", "eve"]
    assert not console.has_session("bob")
    assert console.has_session("eve")
    assert console.acts() == [("ada", "remove user", "bob")]


async def test_nobody_removes_themselves(console: Console) -> None:
    with pytest.raises(ForbiddenError, match=r"settings\.yourself"):
        await remove_user(console.visit("ada", name=" ada"))
    assert console.accounts.users.find("ada") is not None
    assert console.has_session("ada")
    assert console.acts() == []


async def test_a_visitor_ends_a_session_of_their_own(console: Console) -> None:
    wanted = console.session_id("bob")
    answer = await end_session(console.visit("bob", id=wanted))
    assert (answer.status_code, answer.headers["location"]) == (303, "/settings")
    assert not console.has_session("bob")
    assert console.acts() == [("bob", "end session", f"bob {wanted}")]
    [line] = console.audit.newest(1)
    assert (line.address, line.outcome) == ("10.0.0.9", "done")


async def test_only_administrators_end_sessions_of_others(console: Console) -> None:
    wanted = console.session_id("bob")
    with pytest.raises(ForbiddenError, match=r"error\.role"):
        await end_session(console.visit("eve", id=wanted))
    assert console.has_session("bob")
    assert console.acts() == []
    await end_session(console.visit("ada", id=wanted))
    assert not console.has_session("bob")
    assert console.acts() == [("ada", "end session", f"bob {wanted}")]


@pytest.mark.parametrize("wanted", ["", "0123456789ab"])
async def test_a_session_that_has_ended_already_is_no_error(console: Console, wanted: str) -> None:
    answer = await end_session(console.visit("bob", id=wanted))
    assert answer.status_code == 303
    assert all(console.has_session(name) for name in console.tokens)
    assert console.acts() == []

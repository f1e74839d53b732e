"""Settings: choices of the visitor, users, sessions, and the limits of the console."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.responses import Response

from rocketpost.console.access.users import Role, name_problem
from rocketpost.console.pages import Page, redirect
from rocketpost.console.visit import BadInputError, ForbiddenError, Visit


class SessionRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A session in the list."""

    id: str
    user: str
    address: str
    agent: str
    began_seconds: float
    seen_seconds: float
    is_this: bool


async def show_settings(visit: Visit) -> Page:
    """Show the settings."""
    return _page(visit)


async def invite_user(visit: Visit) -> Page:
    """Make a link for a new user, or for a user who forgot the password.

    Raises:
        BadInputError: The name is not one.
    """
    name = visit.query("name", length_max=200)
    if problem := name_problem(name):
        raise BadInputError(visit.text(problem))
    role = Role[visit.choice("role", ("viewer", "operator", "admin")).upper()]
    reads = visit.form.get("bodies") == "1"
    token = visit.services.accounts.invitations.make(name=name, role=role, reads_bodies=reads)
    await _record(visit, "invite user", f"{name} as {role.word}")
    url = visit.services.config.url(visit.services.port)
    return _page(visit, new_link=f"{url}/invitation?token={token}", invited=name)


async def remove_user(visit: Visit) -> Response:
    """Remove a user.

    Raises:
        ForbiddenError: Users cannot remove themselves, so one administrator always stays.
    """
    name = visit.query("name", length_max=200)
    assert visit.session is not None
    if name == visit.session.user.name:
        raise ForbiddenError("settings.yourself")
    await visit.services.accounts.remove_user(name)
    await _record(visit, "remove user", name)
    return redirect("/settings")


async def end_session(visit: Visit) -> Response:
    """End a session: the visitor's own, or any if the visitor is an administrator.

    Raises:
        ForbiddenError: It is another user's.
    """
    assert visit.session is not None
    wanted = visit.query("id", length_max=100)
    sessions = visit.services.accounts.sessions
    found = next((each for each in sessions.list() if each.id == wanted), None)
    if found is not None:
        if found.user.name != visit.session.user.name and visit.role < Role.ADMIN:
            raise ForbiddenError("error.role")
        sessions.end(found.id)
        await _record(visit, "end session", f"{found.user.name} {found.id}")
    return redirect("/settings")


def _page(visit: Visit, **values: Any) -> Page:
    assert visit.session is not None
    accounts, now = visit.services.accounts, time.monotonic()
    sees_all = visit.role >= Role.ADMIN
    sessions = [
        SessionRow(
            id=each.id,
            user=each.user.name,
            address=each.address,
            agent=each.agent,
            began_seconds=now - each.began,
            seen_seconds=now - each.seen,
            is_this=each.id == visit.session.id,
        )
        for each in accounts.sessions.list()
        if sees_all or each.user.name == visit.session.user.name
    ]
    users = [
        {
            "name": each.name,
            "role": each.role,
            "readsBodies": each.reads_bodies,
            "madeMs": each.made_ms,
        }
        for each in (accounts.users.list() if sees_all else [])
    ]
    return Page(
        template="settings.html",
        title=visit.text("nav.settings"),
        data={"users": users, "sessions": sessions, "masks": list(visit.services.config.masks)},
        values={"new_link": "", "invited": "", **values},
    )


async def _record(visit: Visit, act: str, what: str) -> None:
    assert visit.session is not None
    await visit.services.audit.record(
        user=visit.session.user.name, address=visit.address, act=act, what=what, outcome="done"
    )

"""Pages of people who are not logged in: login, logout, a new user's first password, language."""

from __future__ import annotations

import math
from typing import Final
from urllib.parse import urlsplit

from starlette.responses import Response

from rocketpost.console.access.accounts import check_broker_user
from rocketpost.console.access.passwords import password_problem
from rocketpost.console.access.sessions import AGE_SECONDS_MAX
from rocketpost.console.access.users import User, name_problem
from rocketpost.console.catalogue import LANGUAGES
from rocketpost.console.pages import Page, redirect
from rocketpost.console.visit import THEMES, ZONES, Visit
from rocketpost.errors import RocketpostError

_CHOICES: Final = {
    "language": tuple(LANGUAGES),
    "theme": THEMES,
    "zone": ZONES,
    "shortcuts": ("on", "off"),
}
_YEAR_SECONDS: Final = 365 * 86_400


async def show_login(visit: Visit) -> Page | Response:
    """Show the form, or how to make the first user if there is none."""
    target = local_path(visit.query("next"))
    if visit.session is not None:
        return redirect(target)
    return _login_page(visit, target)


async def log_in(visit: Visit) -> Page | Response:
    """Begin a session if the name and the password are right."""
    accounts = visit.services.accounts
    target, name = local_path(visit.query("next")), visit.query("name", length_max=200)
    password = visit.form.get("password", "")
    keys = (f"name {name}", f"address {visit.address}")
    wait = accounts.throttle.wait_seconds(*keys)
    if wait > 0:
        problem = visit.text("login.wait", seconds=math.ceil(wait))
        return _login_page(visit, target, name=name, problem=problem, status=429)
    user, credentials = await accounts.check_password(name, password), None
    problem = visit.text("login.wrong")
    if user is None and name and password and accounts.users.find(name) is None:
        try:
            found = await check_broker_user(visit.services.clusters, name, password)
        except RocketpostError as error:
            found, problem = None, visit.text("login.unanswered", reason=error)
        if found is not None:
            user, credentials = found
    if user is None:
        accounts.throttle.fail(*keys)
        await _record(visit, name, "login", "refused")
        return _login_page(visit, target, name=name, problem=problem, status=401)
    accounts.throttle.forget_failures(*keys)
    await _record(visit, user.name, "login", "done")
    token = accounts.sessions.begin(
        user,
        address=visit.address,
        agent=visit.request.headers.get("user-agent", ""),
        credentials=credentials,
    )
    return _with_session(visit, redirect(target), token)


async def log_out(visit: Visit) -> Response:
    """End the session."""
    assert visit.session is not None
    visit.services.accounts.sessions.end(visit.session.id)
    response = redirect("/login")
    response.delete_cookie(visit.services.config.session_cookie, path="/")
    return response


async def show_invitation(visit: Visit) -> Page:
    """Show the form with which a new user chooses a password."""
    return _invitation_page(visit)


async def accept_invitation(visit: Visit) -> Page | Response:
    """Make the user of an invitation, once."""
    accounts, token = visit.services.accounts, visit.query("token")
    invitation = accounts.invitations.find(token)
    if invitation is None:
        return _invitation_page(visit)
    name = invitation.name or visit.query("name", length_max=200)
    password, again = visit.form.get("password", ""), visit.form.get("again", "")
    problem = name_problem(name) or password_problem(password, name)
    if problem is None and password != again:
        problem = "login.passwords_differ"
    if problem is not None:
        return _invitation_page(visit, name=name, problem=visit.text(problem))
    accounts.invitations.use(token)  # before anything is awaited, so that it works once
    user = User(name=name, role=invitation.role.word, reads_bodies=invitation.reads_bodies)
    await accounts.make_user(user, password)
    await _record(visit, name, "make user", f"done as {user.role}")
    begun = accounts.sessions.begin(
        user, address=visit.address, agent=visit.request.headers.get("user-agent", "")
    )
    return _with_session(visit, redirect("/"), begun)


async def set_preferences(visit: Visit) -> Response:
    """Keep choices of the visitor in cookies."""
    response = redirect(local_path(visit.query("next")))
    for name, choices in _CHOICES.items():
        value = visit.form.get(name)
        if value in choices:
            response.set_cookie(
                f"rocketpost_{name}",
                value,
                max_age=_YEAR_SECONDS,
                samesite="strict",
                httponly=True,
                secure=visit.services.config.is_encrypted,
            )
    return response


def local_path(text: str) -> str:
    """Return a path of this console; ``/`` if the text leads elsewhere."""
    parts = urlsplit(text)
    if not text.startswith("/") or text.startswith(("//", "/\\")) or parts.netloc or parts.scheme:
        return "/"
    return text if text.isprintable() else "/"


def _login_page(
    visit: Visit, target: str, *, name: str = "", problem: str = "", status: int = 200
) -> Page:
    return Page(
        template="login.html",
        title=visit.text("login.title"),
        status=status,
        data={"error": problem or visit.text("error.login")},
        values={
            "target": target,
            "name": name,
            "problem": problem,
            "has_users": not visit.services.accounts.users.is_empty,
        },
    )


def _invitation_page(visit: Visit, *, name: str = "", problem: str = "") -> Page:
    token = visit.query("token")
    invitation = visit.services.accounts.invitations.find(token)
    status = 410 if invitation is None else 400 if problem else 200
    return Page(
        template="invitation.html",
        title=visit.text("login.invitation"),
        status=status,
        data={"error": problem},
        values={"invitation": invitation, "token": token, "name": name, "problem": problem},
    )


def _with_session(visit: Visit, response: Response, token: str) -> Response:
    response.set_cookie(
        visit.services.config.session_cookie,
        token,
        max_age=AGE_SECONDS_MAX,
        path="/",
        httponly=True,
        samesite="strict",
        secure=visit.services.config.is_encrypted,
    )
    return response


async def _record(visit: Visit, name: str, act: str, outcome: str) -> None:
    await visit.services.audit.record(user=name, address=visit.address, act=act, outcome=outcome)

"""The table of all pages: path, view, and the role that a visitor needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from starlette.responses import Response

from rocketpost.console.access.users import Role
from rocketpost.console.pages import Page
from rocketpost.console.views import (
    access,
    actions,
    audit,
    brokers,
    clients,
    dead_letters,
    filters,
    groups,
    jobs,
    login,
    message,
    messages,
    name_servers,
    overview,
    query,
    search,
    settings,
    timers,
    topics,
)
from rocketpost.console.visit import Visit

View = Callable[[Visit], Awaitable[Page | Response]]


class PageRoute(NamedTuple):
    """A page. ``role`` is None if no login is needed."""

    path: str
    view: View
    role: Role | None = Role.VIEWER
    methods: tuple[str, ...] = ("GET",)


_POST: Final = ("POST",)

ROUTES: Final = (
    PageRoute("/login", login.show_login, None),
    PageRoute("/login", login.log_in, None, _POST),
    PageRoute("/logout", login.log_out, Role.VIEWER, _POST),
    PageRoute("/invitation", login.show_invitation, None),
    PageRoute("/invitation", login.accept_invitation, None, _POST),
    PageRoute("/preferences", login.set_preferences, None, _POST),
    PageRoute("/", overview.show_overview),
    PageRoute("/brokers", brokers.show_brokers),
    PageRoute("/brokers/{name}", brokers.show_broker),
    PageRoute("/name-servers", name_servers.show_name_servers),
    PageRoute("/topics", topics.show_topics),
    PageRoute("/topics/{name}", topics.show_topic),
    PageRoute("/groups", groups.show_groups),
    PageRoute("/groups/{name}", groups.show_group),
    PageRoute("/clients", clients.show_clients),
    PageRoute("/messages", messages.show_messages),
    PageRoute("/messages/{id}", message.show_message),
    PageRoute("/messages/{id}/body", message.download_body),
    PageRoute("/dead-letters", dead_letters.show_dead_letters),
    PageRoute("/dead-letters/{name}", dead_letters.show_letters),
    PageRoute("/dead-letters/{name}/export", dead_letters.export_letters),
    PageRoute("/timers", timers.show_timers),
    PageRoute("/query", query.show_query),
    PageRoute("/filters", filters.show_filters),
    PageRoute("/jobs", jobs.show_jobs),
    PageRoute("/jobs/{id}", jobs.show_job),
    PageRoute("/jobs/{id}/stop", jobs.stop_job, Role.OPERATOR, _POST),
    PageRoute("/jobs/{id}/resume", jobs.resume_job, Role.OPERATOR, _POST),
    PageRoute("/search", search.search),
    PageRoute("/access", access.show_access),
    PageRoute("/audit", audit.show_audit),
    PageRoute("/do/{action}", actions.show_action, Role.OPERATOR),
    PageRoute("/do/{action}", actions.apply_action, Role.OPERATOR, _POST),
    PageRoute("/settings", settings.show_settings),
    PageRoute("/settings/invite", settings.invite_user, Role.ADMIN, _POST),
    PageRoute("/settings/remove", settings.remove_user, Role.ADMIN, _POST),
    PageRoute("/settings/end", settings.end_session, Role.VIEWER, _POST),
)

"""One request of a browser, with everything that its page needs."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request

from rocketpost.client.admin import AdminClient
from rocketpost.console.access.accounts import Accounts
from rocketpost.console.access.sessions import Session
from rocketpost.console.access.users import Role
from rocketpost.console.actions.audit_log import AuditLog
from rocketpost.console.actions.plan import Plans
from rocketpost.console.catalogue import Catalogue
from rocketpost.console.clusters import Cluster
from rocketpost.console.config import ConsoleConfig
from rocketpost.console.jobs.runner import Jobs
from rocketpost.console.reasons import Reasons

PAGE_ROWS: Final = 50
SCANS_MAX: Final = 2
THEMES: Final = ("auto", "light", "dark")
ZONES: Final = ("utc", "local")


class NotFoundError(Exception):
    """There is no such thing; the text says what was looked for."""


class BadInputError(Exception):
    """A field of a form or of the address is wrong; the text says which and why."""


class ForbiddenError(Exception):
    """The role of the user does not suffice; the text is the key of the reason."""


@dataclass(slots=True)
class Services:
    """The parts of a running console that pages use."""

    config: ConsoleConfig
    catalogue: Catalogue
    reasons: Reasons
    accounts: Accounts
    clusters: list[Cluster]
    audit: AuditLog
    plans: Plans
    jobs: Jobs
    port: int = 0
    scans: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SCANS_MAX))
    """Large scans that may run at the same time."""


@dataclass(slots=True)
class Visit:
    """A request, who made it, and the cluster that it is about."""

    request: Request
    services: Services
    language: str
    session: Session | None = None
    form: Mapping[str, str] = field(default_factory=dict)
    wants_json: bool = False
    done: dict[str, int] = field(default_factory=dict)
    """Results of an action that makes all its changes at its first step."""

    def text(self, key: str, **values: object) -> str:
        """Return a text in the visitor's language."""
        return self.services.catalogue.text(self.language, key, **values)

    def reason(self, text: str) -> str:
        """Return a reason that was given in English, in the visitor's language if it is known."""
        return self.services.reasons.translate(self.language, text)

    @property
    def path(self) -> str:
        """The path of the page, without the ending ``.json``."""
        return str(self.request.scope["path"])

    @property
    def cluster(self) -> Cluster:
        """The cluster that the page is about: the one of the address, else the first."""
        wanted = self.request.query_params.get("cluster", "")
        clusters = self.services.clusters
        return next((each for each in clusters if each.name == wanted), clusters[0])

    @property
    def admin(self) -> AdminClient:
        """The client to ask servers with; signed by the user's own keys if they have some."""
        return self.cluster.client_of(self.session)

    @property
    def role(self) -> Role:
        """The rights of the visitor."""
        assert self.session is not None
        return self.session.user.rights

    def may(self, role: Role) -> bool:
        """Tell whether the visitor may do what a role may."""
        if self.services.config.read_only and role > Role.VIEWER:
            return False
        return self.session is not None and self.role >= role

    @property
    def reads_bodies(self) -> bool:
        """Whether the visitor may see the bodies of messages."""
        return self.session is not None and self.session.user.reads_bodies

    @property
    def address(self) -> str:
        """The address of the browser or of the proxy in front of the console."""
        return self.request.client.host if self.request.client else ""

    # Fields of the address and of forms.

    def query(self, name: str, default: str = "", *, length_max: int = 2000) -> str:
        """Return a field of the address or the form, without blanks around it."""
        value = self.form.get(name, self.request.query_params.get(name, default)).strip()
        if len(value) > length_max:
            raise BadInputError(f"{name}: {len(value)} > {length_max}")
        return value

    def number(self, name: str, default: int, low: int = 0, high: int = 2**63 - 1) -> int:
        """Return a field as a whole number.

        Raises:
            BadInputError: It is not a number, or out of bounds.
        """
        text = self.query(name)
        if not text:
            return default
        if not re.fullmatch(r"-?\d{1,19}", text) or not low <= int(text) <= high:
            raise BadInputError(self.text("error.number", field=name, low=low, high=high))
        return int(text)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return a field that has one of some values; the first if it has none of them."""
        value = self.query(name)
        return value if value in choices else choices[0]

    def param(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def link(self, path: str, /, **query: object) -> str:
        """Return an address within the console that keeps the cluster."""
        if len(self.services.clusters) > 1:
            query = {**query, "cluster": self.cluster.name}
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return path + (f"?{urlencode(given)}" if given else "")

    def command(self, name: str, *words: object) -> str:
        """Return the ``mqadmin`` command that does the same, quoted for a shell."""
        return shlex.join(["mqadmin", name, "-n", self.cluster.name, *map(str, words)])

    def change_link(self, **changes: object) -> str:
        """Return the address of this page with other values of some fields."""
        query = dict(self.request.query_params) | {
            name: str(each) for name, each in changes.items()
        }
        given = {name: value for name, value in query.items() if value}
        return self.path + (f"?{urlencode(given)}" if given else "")


quote_name = partial(quote, safe="")
"""Quotes a name for a part of a path."""

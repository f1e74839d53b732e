"""Pages: a template with data for people, and the same data as JSON for programs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

import jinja2
import msgspec
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rocketpost.console import shapes
from rocketpost.console.access.users import Role
from rocketpost.console.bodies import is_secret_key, make_visible
from rocketpost.console.catalogue import LANGUAGES
from rocketpost.console.visit import THEMES, ZONES, Visit, quote_name

NAVIGATION: Final = (
    ("overview", "/", "o"),
    ("topics", "/topics", "t"),
    ("groups", "/groups", "g"),
    ("messages", "/messages", "m"),
    ("dead_letters", "/dead-letters", "d"),
    ("query", "/query", "q"),
    ("filters", "/filters", "f"),
    ("timers", "/timers", "w"),
    ("clients", "/clients", "c"),
    ("brokers", "/brokers", "b"),
    ("name_servers", "/name-servers", "n"),
    ("jobs", "/jobs", "j"),
    ("access", "/access", "u"),
    ("audit", "/audit", "a"),
    ("settings", "/settings", "s"),
)
"""Pages of the menu: key, path, and the letter that opens it after ``g``."""


@dataclass(slots=True, kw_only=True)
class Page:
    """The answer to a visit."""

    template: str
    title: str
    data: Any = None
    command: str = ""
    """The ``mqadmin`` command that shows the same."""
    status: int = 200
    is_live: bool = False
    """Whether the page refreshes its marked parts by itself."""
    refresh_ms: int = 0
    """Milliseconds between two refreshes; 0 for the usual five seconds."""
    values: dict[str, Any] = field(default_factory=dict)
    """Values for the template alone."""


def make_environment() -> jinja2.Environment:
    """Return the templates; everything that they insert is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rocketpost.console"),
        autoescape=True,
        auto_reload=False,  # they change only with the package
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": shapes.number_text,
        "rate": shapes.rate_text,
        "bytes": shapes.bytes_text,
        "percent": shapes.percent_text,
        "duration": shapes.duration_text,
        "name": quote_name,
        "visible": lambda value: make_visible(str(value)),
    }
    environment.globals |= {
        "UNKNOWN": shapes.UNKNOWN, "Role": Role, "is_secret_key": is_secret_key
    }  # fmt: skip
    return environment


class Renderer:
    """Turns pages into answers."""

    def __init__(self) -> None:
        self._environment = make_environment()

    def render(self, visit: Visit, page: Page) -> Response:
        """Return the answer to a visit, as HTML or JSON."""
        if visit.wants_json:
            return json_response(page.data, page.status)
        template = self._environment.get_template(page.template)
        zone = preference(visit, "zone", ZONES)
        snapshot = visit.cluster.collector.snapshot
        html = template.render(
            page=page,
            data=page.data,
            visit=visit,
            t=visit.text,
            reason=visit.reason,
            link=visit.link,
            moment=lambda at_ms: shapes.moment_text(at_ms, zone),
            now_ms=time.time_ns() // 1_000_000,
            snapshot=snapshot,
            navigation=NAVIGATION,
            languages=LANGUAGES,
            theme=preference(visit, "theme", THEMES),
            zone=zone,
            shortcuts=preference(visit, "shortcuts", ("on", "off")),
            **page.values,
        )
        return HTMLResponse(html, page.status)


def json_response(data: Any, status: int = 200) -> Response:
    """Return data as JSON."""
    body = msgspec.json.encode(data, enc_hook=_plain)
    return Response(body, status, media_type="application/json")


def preference(visit: Visit, name: str, choices: tuple[str, ...]) -> str:
    """Return a choice of the visitor that a cookie keeps; the first one without it."""
    value = visit.request.cookies.get(f"rocketpost_{name}", "")
    return value if value in choices else choices[0]


def redirect(path: str) -> Response:
    """Send a browser to another page of the console, by GET."""
    return RedirectResponse(path, 303)


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode("utf-8", "replace")
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")

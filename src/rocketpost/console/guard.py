"""Checks before any page: names of the host, origin of changes, size of forms, headers of answers.

A page of another site must not be able to use the console through a visitor's browser. ``Host``
must be one of ours (a foreign name may be made to point at this machine), and requests that change
something must come from our own pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FORM_BYTES_MAX: Final = 1024 * 1024
_SAFE: Final = frozenset({"GET", "HEAD"})
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Refuses requests that do not come from the console's own pages, and adds headers.

    Args:
        app: The application behind it.
        host_names: Returns the accepted values of ``Host``; known once the port is.
        is_encrypted: Whether browsers use https.
    """

    def __init__(
        self, app: ASGIApp, *, host_names: Callable[[], frozenset[str]], is_encrypted: bool
    ) -> None:
        self._app = app
        self._host_names = host_names
        self._scheme = "https" if is_encrypted else "http"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        problem = self._find_problem(scope["method"], headers)
        if problem is not None:
            status, text = problem
            await PlainTextResponse(text + "\n", status)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _find_problem(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "").lower()
        if host not in self._host_names():
            return 421, (
                f"this console does not answer to the name {host!r}; open the address that it "
                "printed, or start it with --allow-host NAME"
            )
        if method in _SAFE:
            return None
        if method != "POST":
            return 405, "only GET and POST are served"
        site = headers.get("sec-fetch-site")
        same = f"{self._scheme}://{host}"
        if site != "same-origin" and not (site is None and headers.get("origin") == same):
            return 403, "changes must come from a page of this console"
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > FORM_BYTES_MAX:
            return 413, f"a form must state its length, at most {FORM_BYTES_MAX} bytes"
        return None

"""The table of pages, and the checks that every page shares: login, role, token, errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from rocketpost.console.access.sessions import is_csrf_token
from rocketpost.console.access.users import Role
from rocketpost.console.catalogue import choose_language
from rocketpost.console.guard import FORM_BYTES_MAX, Guard
from rocketpost.console.pages import Page, Renderer, json_response, redirect
from rocketpost.console.views.table import ROUTES, PageRoute
from rocketpost.console.visit import BadInputError, ForbiddenError, NotFoundError, Services, Visit
from rocketpost.errors import Fault, RocketpostError

logger = logging.getLogger(__name__)

STATIC_SECONDS: Final = 3600


def make_app(services: Services) -> ASGIApp:
    """Return the application."""
    renderer = Renderer()
    routes: list[Any] = [
        Route(each.path, _endpoint(services, renderer, each), methods=list(each.methods))
        for each in ROUTES
    ]
    routes.append(Mount("/static", _Static(packages=[("rocketpost.console", "static")])))
    starlette = Starlette(
        routes=routes, exception_handlers={404: _missing(services, renderer), 405: _not_allowed}
    )
    return Guard(
        _JsonPaths(starlette),
        host_names=lambda: services.config.host_names(services.port),
        is_encrypted=services.config.is_encrypted,
    )


class _Static(StaticFiles):
    """Files of the package, which browsers may keep for a while."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = f"max-age={STATIC_SECONDS}"
        return response


class _JsonPaths:
    """Serves ``/page.json`` as ``/page`` for a program."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith("/static/"):
            path = scope["path"]
            if path.endswith(".json"):
                plain = path.removesuffix(".json").removesuffix("/overview") or "/"
                scope = {**scope, "path": plain, "json": True}
        await self._app(scope, receive, send)


def _endpoint(
    services: Services, renderer: Renderer, route: PageRoute
) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        visit = _make_visit(services, request)
        try:
            refusal = await _check(visit, route)
            if refusal is not None:
                return refusal
            answer = await route.view(visit)
            if isinstance(answer, Page):
                return renderer.render(visit, answer)
            return answer
        except NotFoundError as error:
            answer = _error_page(visit, 404, "error.missing", str(error))
        except BadInputError as error:
            answer = _error_page(visit, 400, "error.input", str(error))
        except ForbiddenError as error:
            answer = _error_page(visit, 403, "error.forbidden", visit.text(str(error)))
        except RocketpostError as error:
            answer = _error_page(visit, *_describe(error))
        except Exception:
            number = time.time_ns() // 1_000_000
            logger.exception("page failed: path=%s number=%s", visit.path, number)
            answer = _error_page(visit, 500, "error.bug", str(number))
        return renderer.render(visit, answer)

    return serve


def _make_visit(services: Services, request: Request) -> Visit:
    cookies, headers = request.cookies, request.headers
    token = cookies.get(services.config.session_cookie, "")
    is_automatic = headers.get("x-refresh") == "1"
    session = services.accounts.sessions.find(token, is_automatic=is_automatic) if token else None
    accept = headers.get("accept", "")
    return Visit(
        request=request,
        services=services,
        language=choose_language(
            cookies.get("rocketpost_language", ""), headers.get("accept-language", "")
        ),
        session=session,
        wants_json="json" in request.scope or accept.split(",")[0].strip() == "application/json",
    )


async def _check(visit: Visit, route: PageRoute) -> Response | None:
    """Return a refusal, or None if the visitor may see the page. Reads the form.

    Raises:
        ForbiddenError: The role does not suffice, or the form's token is wrong.
    """
    if visit.request.method == "POST":
        body = await visit.request.body()
        if len(body) > FORM_BYTES_MAX:
            raise BadInputError("form")
        fields = parse_qsl(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=500
        )
        visit.form = dict(fields)
    if route.role is None:
        return None
    if visit.session is None:
        if visit.wants_json:
            return json_response({"error": visit.text("error.login")}, 401)
        if visit.request.method != "GET":
            raise ForbiddenError("error.session_over")
        target = visit.path + (f"?{visit.request.url.query}" if visit.request.url.query else "")
        return redirect(f"/login?next={quote(target, safe='')}")
    if visit.request.method == "POST" and not is_csrf_token(
        visit.session, visit.form.get("csrf", "")
    ):
        raise ForbiddenError("error.token")
    if visit.session.user.rights < route.role:
        raise ForbiddenError("error.role")
    if route.role > Role.VIEWER and visit.services.config.read_only:
        raise ForbiddenError("error.read_only")
    return None


def _describe(error: RocketpostError) -> tuple[int, str, str]:
    text = error.remark if isinstance(error, Fault) and error.remark else str(error)
    notes = "; ".join([text, *getattr(error, "__notes__", [])])
    if isinstance(error, Fault):
        return 502, "error.refused", notes
    return 502, "error.unreachable", notes or type(error).__name__


def _error_page(visit: Visit, status: int, key: str, detail: str) -> Page:
    title = visit.text(key)
    return Page(
        template="error.html",
        title=title,
        status=status,
        data={"error": title, "detail": detail, "status": status},
    )


def _missing(services: Services, renderer: Renderer) -> Callable[..., Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        visit = _make_visit(services, request)
        if visit.session is None:
            # A stranger does not learn which pages there are.
            return (
                json_response({"error": "login"}, 401) if visit.wants_json else redirect("/login")
            )
        return renderer.render(visit, _error_page(visit, 404, "error.no_page", visit.path))

    return answer


async def _not_allowed(request: Request, error: Exception) -> Response:
    return Response("this page does not take that method\n", 405, media_type="text/plain")

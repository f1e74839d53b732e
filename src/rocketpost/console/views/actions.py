"""Changes by users: a form, a preview with its risks, a confirmation, and the result of each step.

A preview changes nothing. Its ticket works once, for five minutes, for the session that saw it; if
the cluster has changed meanwhile, nothing is done and the new preview is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from rocketpost.console.actions import (
    brokers,
    dead_letters,
    groups,
    messages,
    offsets,
    replay,
    topics,
)
from rocketpost.console.actions.action import Action
from rocketpost.console.actions.plan import Plan, Result, Ticket, apply_steps
from rocketpost.console.pages import Page, json_response, redirect
from rocketpost.console.visit import BadInputError, ForbiddenError, NotFoundError, Visit, quote_name

_ALL: Final[tuple[Action, ...]] = (
    *topics.ACTIONS, *groups.ACTIONS, *offsets.ACTIONS,
    *messages.ACTIONS, *dead_letters.ACTIONS, *replay.ACTIONS, *brokers.ACTIONS,
)  # fmt: skip
ACTIONS: Final = {each.name: each for each in _ALL}
_FIELD_LENGTH_MAX: Final = 600_000
_NAME_LENGTH_MAX: Final = 2000
_CONFLICT: Final = 409


async def show_action(visit: Visit) -> Page:
    """Show the form of an action, or its preview if the form was filled.

    Raises:
        BadInputError: A field is wrong.
    """
    action = _find(visit)
    if visit.query("preview") != "1":
        return await _form(visit, action)
    try:
        plan = await action.plan(visit)
    except BadInputError as error:
        return await _form(visit, action, problem=str(error))
    except NotFoundError as error:
        problem = visit.text("action.missing", name=error)
        return await _form(visit, action, problem=problem, status=404)
    fields = {
        each.name: visit.query(each.name, length_max=_FIELD_LENGTH_MAX) for each in action.fields
    }
    return _preview(visit, action, plan, fields)


async def apply_action(visit: Visit) -> Page | Response:
    """Apply a plan that was shown, if nothing has changed since.

    Raises:
        BadInputError: The name was not typed as asked.
    """
    action = _find(visit)
    if visit.form.get("preview") == "1":  # the fields were too long for an address
        return await show_action(visit)
    assert visit.session is not None
    typed = visit.query("typed", length_max=255)
    ticket = visit.services.plans.take(visit.query("ticket"), session=visit.session.id)
    if ticket is None or ticket.action != action.name:
        raise BadInputError(visit.text("action.ticket"))
    visit.form = ticket.fields
    plan = await action.plan(visit)
    if plan.digest != ticket.digest:
        return _preview(visit, action, plan, ticket.fields, problem=visit.text("action.changed"))
    if plan.typed and typed != plan.typed:
        problem = visit.text("action.not_typed", name=plan.typed)
        return _preview(visit, action, plan, ticket.fields, problem=problem)
    if action.start is not None:
        job = await action.start(visit, plan)
        await _record(visit, action, ticket, plan, f"job {job.id} began")
        if visit.wants_json:
            return json_response({"job": job.id})
        return redirect(visit.link(f"/jobs/{job.id}"))
    assert action.work is not None
    results = await apply_steps(plan.steps, partial(action.work, visit, plan))
    visit.cluster.answers.forget()
    visit.cluster.collector.forget_tables()
    await _record(visit, action, ticket, plan, _summary(results))
    return _page(visit, action, {"plan": plan, "results": results}, command=plan.command)


def _find(visit: Visit) -> Action:
    action = ACTIONS.get(visit.param("action"))
    if action is None:
        raise NotFoundError(visit.param("action"))
    if visit.role < action.role:
        raise ForbiddenError("error.role")
    return action


async def _form(visit: Visit, action: Action, *, problem: str = "", status: int = 400) -> Page:
    defaults = dict.fromkeys((each.name for each in action.fields), "")
    if action.prefill is not None and not problem:
        defaults |= await action.prefill(visit)
    data = {"fields": [each.name for each in action.fields], "problem": problem}
    return _page(
        visit, action, data, status=status if problem else 200, problem=problem, defaults=defaults
    )


def _preview(
    visit: Visit, action: Action, plan: Plan, fields: dict[str, str], *, problem: str = ""
) -> Page:
    assert visit.session is not None
    token = visit.services.plans.issue(plan, fields, session=visit.session.id)
    return _page(
        visit,
        action,
        {"plan": plan, "ticket": token},
        command=plan.command,
        status=_CONFLICT if problem else 200,
        problem=problem,
    )


def _page(
    visit: Visit,
    action: Action,
    data: dict[str, Any],
    *,
    command: str = "",
    status: int = 200,
    problem: str = "",
    defaults: dict[str, str] | None = None,
) -> Page:
    return Page(
        template="action.html",
        title=visit.text(f"action.{action.key}"),
        data=data,
        command=command,
        status=status,
        values={
            "action": action,
            "problem": problem,
            "defaults": defaults or {},
            "subjects": _find_subjects(visit, action),
        },
    )


def _find_subjects(visit: Visit, action: Action) -> list[tuple[str, str]]:
    """Return the names of what an action is about, each with the path of its page if it has one."""
    snapshot = visit.cluster.collector.snapshot
    brokers = {each.name for each in snapshot.brokers}
    places: dict[str, tuple[str, Container[str]]] = {
        "group": ("/groups/", snapshot.groups),
        "source": ("/groups/", snapshot.groups),
        "topic": ("/topics/", snapshot.topics),
        "broker": ("/brokers/", brokers),
        **dict.fromkeys(("key", "id"), ("", ())),
    }
    subjects = []
    for field in action.fields:
        if field.name in places and (name := visit.query(field.name, length_max=_NAME_LENGTH_MAX)):
            path, known = places[field.name]
            subjects.append((name, path + quote_name(name) if name in known else ""))
    return subjects


async def _record(visit: Visit, action: Action, ticket: Ticket, plan: Plan, outcome: str) -> None:
    assert visit.session is not None
    await visit.services.audit.record(
        user=visit.session.user.name,
        address=visit.address,
        act=action.name,
        what=" ".join(value for value in ticket.fields.values() if value)[:300],
        command=plan.command,
        outcome=outcome,
    )


def _summary(results: list[Result]) -> str:
    counts = Counter(each.outcome.value for each in results)
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))

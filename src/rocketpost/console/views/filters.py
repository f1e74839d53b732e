"""Filters: expressions that brokers keep, and a test of any expression on a stored message."""

from __future__ import annotations

import msgspec

from rocketpost.console.bodies import make_visible, mask_paths
from rocketpost.console.pages import Page
from rocketpost.console.views.messages import find_by_offset_id
from rocketpost.console.visit import BadInputError, Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import FilterError, RocketpostError
from rocketpost.filter import compile_filter


class FilterRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A filter that brokers keep under a name."""

    name: str
    expression: str
    brokers: list[str]


class Verdict(msgspec.Struct, kw_only=True, rename="camel"):
    """The result of an expression for a message."""

    accepts: bool | None
    """None if a needed value is missing or of another type; the message does not match then."""
    topic: str
    message_id: str
    properties: dict[str, str]


class FiltersPage(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of the page."""

    filters: list[FilterRow]
    problems: dict[str, str]
    verdict: Verdict | None


async def show_filters(visit: Visit) -> Page:
    """Show the kept filters, and test an expression if one is given."""
    snapshot = await visit.cluster.collector.fresh_snapshot()
    masters = [each for each in snapshot.brokers if each.is_master]
    problems: dict[str, str] = {}
    found: dict[tuple[str, str], FilterRow] = {}

    async def ask(item: tuple[str, str]) -> None:
        name, address = item
        try:
            table = await visit.admin.filters.all(address)
        except RocketpostError as error:
            problems[name] = str(error)
            return
        for each in table.filters.values():
            row = FilterRow(name=each.name, expression=each.expression, brokers=[])
            found.setdefault((each.name, each.expression), row).brokers.append(name)

    await map_concurrently([(each.name, each.address) for each in masters], ask)
    verdict, problem = None, ""
    if visit.query("expression") and visit.query("id"):
        try:
            verdict = await judge(visit, visit.query("expression"), visit.query("id"))
        except (FilterError, BadInputError) as error:
            problem = str(error)
    return Page(
        template="filters.html",
        title=visit.text("nav.filters"),
        data=FiltersPage(
            filters=[found[key] for key in sorted(found)], problems=problems, verdict=verdict
        ),
        status=400 if problem else 200,
        command=visit.command("filterList", "-b", masters[0].address if masters else "HOST:PORT"),
        values={"problem": problem},
    )


async def judge(visit: Visit, expression: str, offset_id: str) -> Verdict:
    """Return whether an expression lets a stored message through.

    Raises:
        FilterError: The expression is wrong.
        BadInputError: The id is wrong, or of another cluster.
    """
    compiled = compile_filter(expression)
    message = await find_by_offset_id(visit, offset_id)
    is_read = visit.reads_bodies and not mask_paths(visit.services.config.masks, message)
    try:
        result = compiled.evaluate(message.properties, message.body if is_read else None)
    except (ValueError, ArithmeticError):  # values that cannot be compared
        result = None
    return Verdict(
        accepts=result if isinstance(result, bool) else None,
        topic=message.record.topic,
        message_id=message.message_id,
        properties={
            make_visible(name): make_visible(value)
            for name, value in sorted(message.properties.items())
        },
    )

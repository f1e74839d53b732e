"""The search at the top of every page: what was typed is recognised by its shape."""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import Response

from rocketpost.console.pages import Page, redirect
from rocketpost.console.visit import Visit, quote_name

_FOUND_MAX = 50


async def search(visit: Visit) -> Page | Response:
    """Show the things whose names contain the text; a single exact match is opened at once."""
    text = visit.query("q", length_max=300)
    snapshot = await visit.cluster.collector.fresh_snapshot()
    exact = [
        path
        for table, path in (
            (snapshot.topics, "/topics/"),
            (snapshot.groups, "/groups/"),
            ({each.name for each in snapshot.brokers}, "/brokers/"),
        )
        if text in table
    ]
    if len(exact) == 1 and not visit.wants_json:
        return redirect(visit.link(exact[0] + quote_name(text)))
    if re.fullmatch(r"[0-9A-Fa-f]{32}([0-9A-Fa-f]{24})?", text) and not visit.wants_json:
        return redirect(visit.link("/messages", by="id", id=text))
    word = text.casefold()
    data: dict[str, Any] = {
        # Topics that servers made for themselves come last.
        "topics": [
            each.name
            for each in sorted(
                snapshot.topics.values(), key=lambda each: (not each.is_of_users, each.name)
            )
            if word in each.name.casefold()
        ][:_FOUND_MAX],
        "groups": [name for name in sorted(snapshot.groups) if word in name.casefold()][
            :_FOUND_MAX
        ],
        "brokers": sorted({each.name for each in snapshot.brokers if word in each.name.casefold()}),
    }
    return Page(
        template="search.html",
        title=visit.text("search.title", text=text),
        data=data,
        values={"search_text": text},
    )

"""The audit page: who did what, newest first."""

from __future__ import annotations

from functools import partial

from rocketpost.console.actions.audit_log import KEPT_MAX, AuditLine
from rocketpost.console.catalogue import Catalogue
from rocketpost.console.pages import Page
from rocketpost.console.views.lists import cut_list
from rocketpost.console.visit import Visit


async def show_audit(visit: Visit) -> Page:
    """Show the newest acts of users."""

    def describe(line: AuditLine) -> str:
        return f"{line.user} {line.act} {line.what} {line.outcome} {line.address}"

    listing = cut_list(
        visit,
        visit.services.audit.newest(KEPT_MAX),
        name=describe,
        sorts={"time": lambda line: line.at_ms},
        descending=True,
    )
    return Page(
        template="audit.html",
        title=visit.text("nav.audit"),
        data=listing,
        values={
            "path": str(visit.services.audit.path),
            "act_text": partial(act_text, visit.services.catalogue, visit.language),
        },
    )


def act_text(catalogue: Catalogue, language: str, act: str) -> str:
    """Return an act in the visitor's language; as it was recorded if another version named it."""
    word = act.replace(" ", "_").replace("-", "_")
    for key in (f"act.{word}", f"action.{word}"):
        if catalogue.has(key):
            return catalogue.text(language, key)
    return act

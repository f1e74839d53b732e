"""HTML page of the report on dead letters."""

from __future__ import annotations

from html import escape

from rocketpost.spark.pipelines.dead_letter_report import LetterReport
from rocketpost.spark.pipelines.page import document, placeholder, share, table, timeline_bars, utc


def page(report: LetterReport) -> str:
    """Return the report as a page."""
    verdict = '<span class="good">no dead letters</span>'
    if report.letters:
        verdict = f'<span class="bad">{report.letters:,} dead letters</span>'
    return document(
        f"Dead letters of {report.group}",
        verdict=verdict,
        summary=_summary(report),
        sections=[
            ("When they died", timeline_bars(report.timeline, none="nothing died")),
            ("Causes", _causes(report)),
            ("Texts", _texts(report)),
        ],
    )


def _summary(report: LetterReport) -> str:
    said = []
    if report.first_ms is not None and report.last_ms is not None:
        said.append(f"died {utc(report.first_ms)} to {utc(report.last_ms)} UTC")
    if report.without_origin:
        said.append(f"{report.without_origin:,} do not name the topic that they came from")
    if report.worn_out:
        said.append(f"{report.worn_out:,} were sent again {report.redrives_max} times or more")
    return "; ".join(said) or "nothing matches"


def _causes(report: LetterReport) -> str:
    if not report.causes:
        return placeholder("nothing died")
    most = report.causes[0].letters
    rows = [
        (
            f"<code>{escape(cause.cause)}</code>",
            escape(cause.topic or "unknown"),
            f"{cause.letters:,}",
            share(cause.letters, most),
            utc(cause.first_ms),
            utc(cause.last_ms),
            escape(cause.example),
        )
        for cause in report.causes
    ]
    return table(("cause", "from topic", "#letters", "=share", "@first", "@last", "example"), rows)


def _texts(report: LetterReport) -> str:
    if not report.texts:
        return placeholder("no letter has a text")
    most = report.texts[0].letters
    rows = [
        (
            escape(text.text),
            f"<code>{escape(text.cause)}</code>",
            f"{text.letters:,}",
            share(text.letters, most),
            utc(text.last_ms),
        )
        for text in report.texts
    ]
    return table(("text, numbers as #", "cause", "#letters", "=share", "@last"), rows)

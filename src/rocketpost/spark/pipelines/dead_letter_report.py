"""What there is to know of dead letters, as values: for tables, for JSON and for the page."""

from __future__ import annotations

import msgspec

from rocketpost.spark.pipelines.timeline import Moment


class Cause(msgspec.Struct, frozen=True, rename="camel"):
    """Letters of one topic that died of one exception.

    Attributes:
        cause: The exception's class, or ``unknown``.
        topic: Where they came from, if they say so.
        letters: How many.
        first_ms: When the first died.
        last_ms: When the last died.
        example: The exception's text of the last.
    """

    cause: str
    topic: str | None
    letters: int
    first_ms: int
    last_ms: int
    example: str


class Text(msgspec.Struct, frozen=True, rename="camel"):
    """Letters whose exceptions said the same, numbers aside."""

    cause: str
    text: str
    letters: int
    last_ms: int


class LetterReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why the messages of a group died.

    Attributes:
        group: Whose they are.
        letters: How many.
        without_origin: How many do not say where they came from.
        worn_out: How many were sent again so often that they are not any more.
        redrives_max: How often that is.
        first_ms: When the first died.
        last_ms: When the last died.
        causes: By exception and topic, most frequent first; all of them.
        texts: By text, the most frequent ones.
        timeline: When they died.
    """

    group: str
    letters: int
    without_origin: int
    worn_out: int
    redrives_max: int
    first_ms: int | None
    last_ms: int | None
    causes: tuple[Cause, ...]
    texts: tuple[Text, ...]
    timeline: tuple[Moment, ...]


class Redriven(msgspec.Struct, frozen=True, kw_only=True):
    """What a redrive did, or would do.

    Attributes:
        name: What it is called.
        letters: How many were due.
        stored: How many of them are sent now: all, unless it was a dry run, or was stopped.
        before: So many of them had been sent by earlier runs.
    """

    name: str
    letters: int
    stored: int
    before: int

"""Values of the report on dead letters, for tables, JSON and the page. Pure."""

from __future__ import annotations

import msgspec

from rocketpost.spark.pipelines.timeline import Moment


class Cause(msgspec.Struct, frozen=True, rename="camel"):
    """Dead letters of one topic with the same exception.

    Attributes:
        cause: The class of the exception, or ``unknown``.
        topic: The original topic, if known.
        letters: The number of letters.
        first_ms: The time of the first.
        last_ms: The time of the last.
        example: The exception text of the last.
    """

    cause: str
    topic: str | None
    letters: int
    first_ms: int
    last_ms: int
    example: str


class Text(msgspec.Struct, frozen=True, rename="camel"):
    """Dead letters with the same exception text, except for numbers."""

    cause: str
    text: str
    letters: int
    last_ms: int


class LetterReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The report on the dead letters of a group.

    Attributes:
        group: The consumer group.
        letters: The number of letters.
        without_origin: The number of letters with an unknown original topic.
        worn_out: The number of letters at the limit of redrives.
        redrives_max: The limit of redrives.
        first_ms: The time of the first.
        last_ms: The time of the last.
        causes: All causes by exception and topic, the most frequent first.
        texts: The most frequent texts.
        timeline: The number of letters over time.
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


class RedriveReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a redrive, or of a dry run.

    Attributes:
        name: The name of the redrive.
        letters: The number of selected letters.
        stored: The number sent so far: all, except in a dry run or a stopped run.
        before: The number sent by earlier runs.
    """

    name: str
    letters: int
    stored: int
    before: int

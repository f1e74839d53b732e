"""Where a query begins and ends: options and what brokers say, made into offsets."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from rocketpost.errors import ClientError, ConfigError
from rocketpost.model.group import parse_tags
from rocketpost.model.names import is_system_topic
from rocketpost.spark.broker_session import Link
from rocketpost.spark.option_checks import EARLIEST, LATEST, offsets_json, times_json
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.source.narrowing import first_since
from rocketpost.spark.source.plan import Bounds, Loss, Offsets, QueueKey, in_words
from rocketpost.spark.source.predicates import Texts

logger = logging.getLogger(__name__)


def starting(link: Link, options: SourceOptions, *, default: str) -> Offsets:
    """Return where a new query begins, for every queue.

    Raises:
        ConfigError: The options name a queue that does not exist.
        ClientError: No message is as young as the options want, and that is an error.
    """
    bounds = link.bounds(link.queues())
    if options.starting_timestamp is not None:
        times = dict.fromkeys(bounds, options.starting_timestamp)
        return _by_time(link, options, bounds, times)
    if options.starting_by_timestamp:
        times = _times("startingOffsetsByTimestamp", options.starting_by_timestamp, bounds)
        return _by_time(link, options, bounds, times)
    how = options.starting_offsets or default
    if how == "group":
        known = link.group_offsets(bounds)
        return {
            queue: bounds[queue].first if offset is None or offset < 0 else offset
            for queue, offset in known.items()
        }
    return _named("startingOffsets", how, bounds)


def ending(link: Link, options: SourceOptions, bounds: Mapping[QueueKey, Bounds]) -> Offsets:
    """Return where a batch ends, for every queue; that message is not read any more."""
    if options.ending_timestamp is not None:
        times = dict.fromkeys(bounds, options.ending_timestamp)
        return first_since(link, bounds, times)
    if options.ending_by_timestamp:
        times = _times("endingOffsetsByTimestamp", options.ending_by_timestamp, bounds)
        return first_since(link, bounds, times)
    return _named("endingOffsets", options.ending_offsets, bounds)


def tags_expression(options: SourceOptions, wanted: Texts) -> str:
    """Return the expression by which brokers filter when only some tags are wanted.

    It stays what it was where tags cannot be told so: by SQL, with tags that the expression cannot
    name, and for topics of the system, whose hashes may stand for something else.
    """
    if options.expression_type != "TAG" or not wanted.values:
        return options.expression
    if any(map(is_system_topic, [*options.topics, *(queue.topic for queue in options.assigned)])):
        return options.expression
    before = parse_tags("", options.expression, version=0).tags_set
    tags = wanted.values & before if before else wanted.values
    made = " || ".join(sorted(tags))
    is_said = tags and parse_tags("", made, version=0).tags_set == tags
    return made if is_said else options.expression


def report(losses: list[Loss], *, fail: bool) -> None:
    """Say what is lost, or fail because of it.

    Raises:
        ClientError: Something is lost and ``fail`` is set.
    """
    if losses and fail:
        more = f" (and {len(losses) - 1} queues more)" if len(losses) > 1 else ""
        raise ClientError(
            f"messages are gone: {losses[0].text}{more}. "
            "Set failOnDataLoss=false to go on without them"
        )
    for loss in losses:
        logger.warning("messages are gone: %s", loss.text)


def _named(key: str, how: str, bounds: Mapping[QueueKey, Bounds]) -> Offsets:
    if how == "earliest":
        return {queue: bound.first for queue, bound in bounds.items()}
    if how == "latest":
        return {queue: bound.end for queue, bound in bounds.items()}
    given = offsets_json(key, how)
    _check_names(key, given, bounds)
    return {queue: _meant(offset, bounds[queue]) for queue, offset in given.items()}


def _meant(offset: int, bound: Bounds) -> int:
    return {EARLIEST: bound.first, LATEST: bound.end}.get(offset, offset)


def _by_time(
    link: Link,
    options: SourceOptions,
    bounds: Mapping[QueueKey, Bounds],
    times: dict[QueueKey, int],
) -> Offsets:
    found = first_since(link, bounds, times)
    if options.timestamp_strategy == "error":
        for queue, offset in found.items():
            if offset >= bounds[queue].end:
                raise ClientError(f"{queue} has no message stored at {times[queue]} or later")
    return found


def _times(key: str, text: str, bounds: Mapping[QueueKey, Bounds]) -> dict[QueueKey, int]:
    times = times_json(key, text)
    _check_names(key, times, bounds)
    return times


def _check_names(key: str, given: Collection[QueueKey], there: Collection[QueueKey]) -> None:
    """Check that an option speaks of every queue that there is, and of no other."""
    if unknown := set(given) - set(there):
        raise ConfigError(
            f"{key} names what does not exist: {in_words(unknown)}; there are {in_words(there)}"
        )
    if missing := set(there) - set(given):
        raise ConfigError(
            f"{key} says nothing of {in_words(missing)}; name every queue, or read only some by "
            "the option assign"
        )

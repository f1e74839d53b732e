"""Start and end offsets of a query, from its options and the answers of brokers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from rocketpost.errors import ClientError, ConfigError
from rocketpost.model.group import parse_tags
from rocketpost.model.names import is_system_topic
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.option_checks import EARLIEST, LATEST, parse_offsets, parse_times
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.source.plan import (
    Bounds,
    DataLoss,
    Offsets,
    QueueKey,
    describe_more_queues,
    describe_queues,
)
from rocketpost.spark.source.predicates import TextBounds
from rocketpost.spark.source.time_bounds import find_first_since

logger = logging.getLogger(__name__)


def resolve_start(
    broker_session: BrokerSession, options: SourceOptions, *, default: str
) -> Offsets:
    """Return the start offset of a new query for every queue.

    Raises:
        ConfigError: The options name a queue that does not exist.
        ClientError: No message is recent enough, and the options make that an error.
    """
    bounds = broker_session.bounds(broker_session.queues())
    if options.starting_timestamp is not None:
        times = dict.fromkeys(bounds, options.starting_timestamp)
        return _resolve_times(broker_session, options, bounds, times)
    if options.starting_by_timestamp:
        times = _parse_all_times(
            "startingOffsetsByTimestamp", options.starting_by_timestamp, bounds
        )
        return _resolve_times(broker_session, options, bounds, times)
    how = options.starting_offsets or default
    if how == "group":
        known = broker_session.group_offsets(bounds)
        return {
            queue: bounds[queue].first if offset is None or offset < 0 else offset
            for queue, offset in known.items()
        }
    return _resolve_option("startingOffsets", how, bounds)


def resolve_end(
    broker_session: BrokerSession, options: SourceOptions, bounds: Mapping[QueueKey, Bounds]
) -> Offsets:
    """Return the end offset of a batch for every queue; the message there is not read."""
    if options.ending_timestamp is not None:
        times = dict.fromkeys(bounds, options.ending_timestamp)
        return find_first_since(broker_session, bounds, times)
    if options.ending_by_timestamp:
        times = _parse_all_times("endingOffsetsByTimestamp", options.ending_by_timestamp, bounds)
        return find_first_since(broker_session, bounds, times)
    return _resolve_option("endingOffsets", options.ending_offsets, bounds)


def tags_expression(options: SourceOptions, wanted: TextBounds) -> str:
    """Return the filter expression for brokers if only some tags are wanted.

    It does not change if it cannot express the tags: if it is SQL, if it cannot contain the tags,
    and for system topics, whose tag hashes may have another meaning.
    """
    if options.expression_type != "TAG" or not wanted.values:
        return options.expression
    if any(map(is_system_topic, [*options.topics, *(queue.topic for queue in options.assigned)])):
        return options.expression
    before = parse_tags("", options.expression, version=0).tags_set
    tags = wanted.values & before if before else wanted.values
    expression = " || ".join(sorted(tags))
    is_exact = tags and parse_tags("", expression, version=0).tags_set == tags
    return expression if is_exact else options.expression


def report_losses(losses: list[DataLoss], *, fail: bool) -> None:
    """Log losses, or fail because of them.

    Raises:
        ClientError: There is a loss, and ``fail`` is set.
    """
    if losses and fail:
        more = describe_more_queues(len(losses) - 1)
        raise ClientError(
            f"messages are lost: {losses[0].text}{more}. Set failOnDataLoss=false to "
            "continue without them"
        )
    for loss in losses:
        logger.warning("messages are lost: %s", loss.text)


def _resolve_option(key: str, how: str, bounds: Mapping[QueueKey, Bounds]) -> Offsets:
    if how == "earliest":
        return {queue: bound.first for queue, bound in bounds.items()}
    if how == "latest":
        return {queue: bound.end for queue, bound in bounds.items()}
    given = parse_offsets(key, how)
    _check_names(key, given, bounds)
    return {queue: _resolve_offset(offset, bounds[queue]) for queue, offset in given.items()}


def _resolve_offset(offset: int, bound: Bounds) -> int:
    return {EARLIEST: bound.first, LATEST: bound.end}.get(offset, offset)


def _resolve_times(
    broker_session: BrokerSession,
    options: SourceOptions,
    bounds: Mapping[QueueKey, Bounds],
    times: dict[QueueKey, int],
) -> Offsets:
    found = find_first_since(broker_session, bounds, times)
    if options.timestamp_strategy == "error":
        for queue, offset in found.items():
            if offset >= bounds[queue].end:
                raise ClientError(f"{queue} has no message stored at {times[queue]} or later")
    return found


def _parse_all_times(key: str, text: str, bounds: Mapping[QueueKey, Bounds]) -> dict[QueueKey, int]:
    times = parse_times(key, text)
    _check_names(key, times, bounds)
    return times


def _check_names(key: str, given: Collection[QueueKey], existing: Collection[QueueKey]) -> None:
    """Check that an option names all existing queues and no others."""
    if unknown := set(given) - set(existing):
        raise ConfigError(
            f"{key} names queues that do not exist: {describe_queues(unknown)}; existing "
            f"are {describe_queues(existing)}"
        )
    if missing := set(existing) - set(given):
        raise ConfigError(
            f"{key} does not name {describe_queues(missing)}; name every queue, or select "
            "some with the option assign"
        )

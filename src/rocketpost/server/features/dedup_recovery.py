"""Recovery of a broker's knowledge of duplicates: from a snapshot, the log and the queues.

A snapshot is trusted only if it fits the log: it must not end after the log, and the message that
it names must be at its position. If it does not fit, is damaged or is missing, the whole log is
read. If old segments are gone by then, the broker's log and its status say so. Messages that
Apache's broker stored in between are read like all others after the snapshot. A store that only
Apache's brokers have written has no numbered messages, so it is not read.
"""

from __future__ import annotations

import logging
import re
from itertools import islice
from typing import NamedTuple

from rocketpost.broker.dedup.producers import ProducerLimits, ProducerTable
from rocketpost.broker.dedup.service import sent_queue_id, stamp_of
from rocketpost.broker.dedup.unique_keys import Key, KeyWindow
from rocketpost.broker.kinds import WAITING_TOPICS
from rocketpost.broker.topic import TopicTable
from rocketpost.broker.transaction.log import ended_offsets
from rocketpost.codec.record import Record, decode_record
from rocketpost.errors import CorruptRecord, StoreError
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.model.names import HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC, is_retry_or_dlq
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.store.descriptors import may_pass
from rocketpost.store.draft import Appended
from rocketpost.store.files import FileSystem
from rocketpost.store.log.walk import walk
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.tables import TableFile

logger = logging.getLogger(__name__)

_MARK = names.PRODUCER_SEQUENCE.encode()
_find_mark = re.compile(re.escape(_MARK)).search


class DedupState(NamedTuple):
    """A broker's knowledge of duplicates, and the file of its producers."""

    producers: ProducerTable
    producers_file: TableFile[ProducerTable]
    keys: KeyWindow
    repair: str = ""
    """Reason why the producers' state was rebuilt from the log, and what was lost."""


def recover_blocking(
    store: MessageStore,
    *,
    topics: TopicTable,
    config: BrokerConfig,
    clock: Clock,
    is_foreign: bool = False,
    keys: KeyWindow | None = None,
    limits: ProducerLimits | None = None,
    files: FileSystem | None = None,
) -> DedupState:
    """Recover the knowledge of stored messages. Call this before the loop uses the store.

    Args:
        store: The message store.
        topics: The topics, some of which check unique keys.
        config: The limits, and the default window of unique keys.
        clock: The clock that decides which unique keys are still valid.
        is_foreign: Whether RocketMQ stored all messages (``store.origin``).
        keys: The window of unique keys to fill, if not a new one.
        limits: The limits of the producer table, if not those in ``config``.
        files: The file system, if not the store's.

    Raises:
        OSError: The first snapshot cannot be written.
    """
    limits = limits or producer_limits(config)
    file = snapshot_file(store, files if files is not None else store.files, limits)
    table, repair = _load_blocking(store, file, limits, is_foreign=is_foreign)
    keys = KeyWindow(clock=clock) if keys is None else keys
    keys.configure(default_seconds=config.dedup_seconds, keys_max=config.dedup_keys_max)
    for name, topic in topics.configs.items():
        keys.watch(name, topic)
    if keys.is_on:
        keys.fill(_stored_keys(store, keys, topics, now_ms=clock.now_ms()))
        logger.info("unique keys read back: count=%s", len(keys))
    return DedupState(table, file, keys, repair)


def producer_limits(config: BrokerConfig) -> ProducerLimits:
    """Return the limits in the settings."""
    return ProducerLimits(
        producers_max=config.idempotent_producers_max,
        idle_ms_max=config.idempotent_idle_seconds * 1000,
    )


def snapshot_file(
    store: MessageStore, files: FileSystem, limits: ProducerLimits
) -> TableFile[ProducerTable]:
    """Return the file of the snapshot."""

    def decode(data: bytes) -> ProducerTable:
        table = ProducerTable(limits)
        table.load(data)
        return table

    return TableFile(
        store.layout.producer_state,
        files=files,
        decode=decode,
        empty=lambda: ProducerTable(limits),
        is_guarded=True,
    )


def _load_blocking(
    store: MessageStore, file: TableFile[ProducerTable], limits: ProducerLimits, *, is_foreign: bool
) -> tuple[ProducerTable, str]:
    """Return the producers, and the repair that was needed, if any."""
    end = int(store.written_position)
    try:
        table = file.load_blocking()
    except StoreError as error:
        logger.warning("producerState.json cannot be used: reason=%s", error)
        because = "producerState.json is missing or damaged"
        return _rebuild_blocking(store, file, limits, end=end, because=because, was_saved=True)
    if table.position < 0:
        because = "producerState.json is missing"
        begin = end if is_foreign else 0
        return _rebuild_blocking(store, file, limits, begin=begin, end=end, because=because)
    if not _fits(store, table, end):
        because = "producerState.json belongs to another log"
        return _rebuild_blocking(store, file, limits, end=end, because=because)
    if table.position < store.first_position:
        because = "producerState.json is older than the log"
        return _rebuild_blocking(store, file, limits, end=end, because=because, older=table)
    _replay(store, table, table.position, end)
    return table, ""


def _rebuild_blocking(
    store: MessageStore,
    file: TableFile[ProducerTable],
    limits: ProducerLimits,
    *,
    begin: int = 0,
    end: int,
    because: str,
    older: ProducerTable | None = None,
    was_saved: bool = False,
) -> tuple[ProducerTable, str]:
    """Rebuild the producers from the log, from ``begin`` on, and save them if there is room.

    If the beginning of the log was deleted, numbers below a producer's first one are refused from
    now on, because it is unknown whether they were stored.
    """
    table = ProducerTable(limits)
    is_whole = store.first_position == 0
    is_used = _replay(store, table, begin, end) > 0 or bool(older) or (was_saved and not is_whole)
    if not is_whole:
        table.forget_before_log()
    if older is not None:
        table.add_silent(older)
    try:
        file.save_blocking(table.to_json(end))
    except OSError as error:
        if not may_pass(error):
            raise
        logger.warning("the producers are not saved yet: reason=%s", error)
    if not is_used:  # the first start, or a broker that has no such producers
        return table, ""
    if is_whole:
        logger.warning("idempotent producers were read from the whole log: reason=%s", because)
        return table, f"{because}; rebuilt from the whole log"
    logger.error(
        "idempotent producers were read from a log that begins at %s: what they stored before is "
        "not known, and numbers below their first ones there are refused: reason=%s",
        store.first_position,
        because,
    )
    return table, f"{because}; rebuilt from position {store.first_position} on, the rest is lost"


def _fits(store: MessageStore, table: ProducerTable, end: int) -> bool:
    position, store_ms = table.anchor
    if table.position > end:
        return False
    if position < store.first_position:  # no such message, or it has expired
        return True
    return store.store_time_at(position) == store_ms


def _first_marked(store: MessageStore, begin: int, end: int) -> int:
    """Return the position to read from: leading segments without a numbered message are skipped."""
    for segment in store.segments.all():
        if segment.end <= begin or segment.start >= end:
            continue
        if _find_mark(segment.view()[: end - segment.start]):
            return max(begin, segment.start)
        segment.unmap()  # each map keeps a descriptor
    return end


def _replay(store: MessageStore, table: ProducerTable, begin: int, end: int) -> int:
    """Replay the numbered messages of a part of the log; return their number."""
    count = 0
    begin = _first_marked(store, begin, end)
    for position, data in walk(store.segments, begin, end):
        if _MARK not in bytes(data):
            continue
        try:
            record = decode_record(data, verify_crc=False)
        except CorruptRecord:
            continue
        stamp = stamp_of(record)
        if stamp is not None:
            count += 1
            table.replay(stamp, position=position, store_ms=record.store_ms)
    logger.info(
        "producers recovered: count=%s from=%s to=%s messages=%s", len(table), begin, end, count
    )
    return count


def _stored_keys(
    store: MessageStore, keys: KeyWindow, topics: TopicTable, *, now_ms: int
) -> dict[Key, Appended]:
    """Return the unique keys that are still valid, oldest first."""
    found: list[tuple[int, Key, Appended | None]] = []
    for topic in topics.configs:
        is_waiting = topic in WAITING_TOPICS
        window_ms = keys.window_ms_max if is_waiting else keys.window_ms(topic)
        if not window_ms or is_retry_or_dlq(topic) or (topics.is_system(topic) and not is_waiting):
            continue
        for queue in store.queues_of(topic):
            found += _queue_keys(store, keys, queue, begin_ms=now_ms - window_ms)
    found.sort(key=lambda each: each[0])
    counted: dict[Key, Appended] = {}
    for _, key, place in found:
        counted.pop(key, None)
        if place is not None:
            counted[key] = place
    return dict(islice(counted.items(), max(0, len(counted) - keys.keys_max), None))


def _queue_keys(
    store: MessageStore, keys: KeyWindow, queue: ConsumeQueue, *, begin_ms: int
) -> list[tuple[int, Key, Appended | None]]:
    """Return the keys of one queue with their positions; a recalled message has no place."""
    ended = _ended_halves(store, begin_ms) if queue.topic == HALF_TOPIC else frozenset()
    begin = max(int(queue.offset_at(begin_ms)), int(queue.end) - keys.keys_max)
    found = []
    for offset in range(begin, int(queue.end)):
        entry = queue.entry(offset)
        record = store.record_of(queue, offset, *entry[:2]) if entry is not None else None
        if record is None or record.reconsume_times > 0 or offset in ended:
            continue
        topic = record.topic
        if topic in WAITING_TOPICS:
            topic = record.properties.get(names.REAL_TOPIC, topic)
        unique_key = record.properties.get(names.UNIQUE_KEY)
        if unique_key and keys.window_ms(topic):
            is_recall = queue.topic == TIMER_TOPIC and names.TIMER_RECALLS in record.properties
            place = None if is_recall else _place(record, topic, unique_key)
            found.append((record.position, (topic, unique_key), place))
    return found


def _ended_halves(store: MessageStore, begin_ms: int) -> frozenset[int]:
    """Return the offsets of finished halves; committed messages are in their topics."""
    ended: set[int] = set()
    queue = store.queue(OP_HALF_TOPIC, 0)
    if queue is None:
        return frozenset()
    for offset in range(int(queue.offset_at(begin_ms)), int(queue.end)):
        entry = queue.entry(offset)
        record = store.record_of(queue, offset, *entry[:2]) if entry is not None else None
        if record is not None:
            ended.update(ended_offsets(record))
    return frozenset(ended)


def _place(record: Record, topic: str, unique_key: str) -> Appended:
    return Appended(
        Position(record.position),
        record.size,
        QueueOffset(record.queue_offset),
        record.store_ms,
        topic,
        sent_queue_id(record),
        0,
        (unique_key,),
        None,
    )

"""Changes of tables in the records of a group: single rows, and the result of several changes.

The position where the leader's log begins is one of them: everything before it has been moved, or
is needed no more (:data:`LOG_START`).

Topics, groups, offsets and locks change row by row. A change of topics or groups is
``{"rows": TABLE, "gone": [NAME, ...]}``: TABLE has the form of the whole table, but only the rows
that have changed. A change of offsets has the changed rows, one of locks the locks of the changed
groups; an empty row is gone. Other tables are always whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from rocketpost.broker.group.queue_locks import HeldQueues
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.bodies.followed_tables import TableText
from rocketpost.codec.bodies.group import GroupTableBody, decode_group_table, encode_group_table
from rocketpost.codec.bodies.offset import decode_offset_table, encode_offset_row
from rocketpost.codec.bodies.offset import encode_offset_table as encode_offsets
from rocketpost.codec.bodies.topic import TopicTableBody, decode_topic_table, encode_topic_table
from rocketpost.errors import RemoteProtocolError
from rocketpost.server.replication import tables_feed as feed
from rocketpost.store.deleted_topics import DeletedTopic

LOCKS: Final = "locks"
PRODUCERS: Final = "producers"
GROUP_FILTERS: Final = "groupFilters"
LOG_START: Final = "logStart"
"""Start of the leader's log. A leader moves messages that it has yet to deliver before it deletes a
segment, so the moved ones are in the log before this says that the segment is gone."""

T = TypeVar("T")


class _Rows(msgspec.Struct):
    rows: msgspec.Raw
    gone: list[str] = []


class TopicChanges(NamedTuple):
    """Topics that have changed."""

    rows: TopicTableBody
    gone: list[str]


class GroupChanges(NamedTuple):
    """Groups that have changed, and all topics that are forbidden to groups."""

    rows: GroupTableBody
    gone: list[str]


def topic_changes(topics: TopicTable, names: Collection[str]) -> TableText:
    """Return the rows of topics that have changed."""
    rows, gone = _split(names, topics.configs)
    body = TopicTableBody(data_version=topics.version, topic_config_table=rows)
    return _rows_text(feed.TOPICS, encode_topic_table(body, mappings=False), gone)


def group_changes(groups: GroupTable, names: Collection[str]) -> TableText:
    """Return the rows of groups that have changed."""
    rows, gone = _split(names, groups.configs)
    body = groups.body()
    body.subscription_group_table = rows
    return _rows_text(feed.GROUPS, encode_group_table(body), gone)


def decode_topic_changes(text: bytes) -> TopicChanges:
    """Read the rows of topics that have changed.

    Raises:
        RemoteProtocolError: The text is malformed.
    """
    found = _decode_rows(text)
    return TopicChanges(decode_topic_table(bytes(found.rows)), found.gone)


def decode_group_changes(text: bytes) -> GroupChanges:
    """Read the rows of groups that have changed.

    Raises:
        RemoteProtocolError: The text is malformed.
    """
    found = _decode_rows(text)
    return GroupChanges(decode_group_table(bytes(found.rows)), found.gone)


def deletion_change(topic: str, deletion: DeletedTopic) -> TableText:
    """Return the deletion of one topic's queues."""
    text = msgspec.json.encode({topic: deletion})
    return TableText(feed.DELETIONS, "", text, is_whole=False)


def encode_locks(holders: dict[str, list[HeldQueues]]) -> bytes:
    """Return the text of the holders of queues."""
    return msgspec.json.encode(holders)


def decode_locks(text: bytes) -> dict[str, list[HeldQueues]]:
    """Read the holders of queues.

    Raises:
        RemoteProtocolError: The text is malformed.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, list[HeldQueues]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"bad table of locks: {error}") from None


def encode_log_start(position: int) -> bytes:
    """Return the text of the position where the leader's log begins."""
    return msgspec.json.encode(position)


def decode_log_start(text: bytes) -> int:
    """Read the position where the leader's log begins.

    Raises:
        RemoteProtocolError: The text is malformed.
    """
    try:
        return msgspec.json.decode(text, type=int)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"bad start of a log: {error}") from None


def fold(changes: Iterable[TableText]) -> list[TableText]:
    """Return whole tables that have the effect of several changes, each table once.

    So a table that is restored from a copy and later changes is never seen without the latter.

    Raises:
        RemoteProtocolError: A text is malformed.
    """
    found: dict[str, list[TableText]] = {}
    for change in changes:
        if change.is_whole:
            found[change.name] = [change]
        else:
            found.setdefault(change.name, []).append(change)
    return [
        _MERGES[name](texts) if len(texts) > 1 and name in _MERGES else texts[-1]
        for name, texts in found.items()
    ]


def _merge_topics(texts: Sequence[TableText]) -> TableText:
    body = decode_topic_table(texts[0].text)
    table = dict(body.topic_config_table)
    for each in texts[1:]:
        rows, gone = decode_topic_changes(each.text)
        table |= rows.topic_config_table
        for name in gone:
            table.pop(name, None)
        body.data_version = rows.data_version
    body.topic_config_table = table
    return TableText(feed.TOPICS, "", encode_topic_table(body, mappings=False))


def _merge_groups(texts: Sequence[TableText]) -> TableText:
    body = decode_group_table(texts[0].text)
    table = dict(body.subscription_group_table)
    for each in texts[1:]:
        rows, gone = decode_group_changes(each.text)
        table |= rows.subscription_group_table
        for name in gone:
            table.pop(name, None)
        body = rows
    body.subscription_group_table = table
    return TableText(feed.GROUPS, "", encode_group_table(body))


def _merge_offsets(texts: Sequence[TableText]) -> TableText:
    table: dict[str, dict[int, int]] = {}
    for each in texts:
        body = decode_offset_table(each.text)
        table |= body.offset_table
    rows = ((key, encode_offset_row(row)) for key, row in table.items() if row)
    resets = ((key, encode_offset_row(row)) for key, row in body.pending_reset_table.items())
    return TableText(feed.OFFSETS, "", encode_offsets(body.data_version, rows, resets=resets))


def _merge_locks(texts: Sequence[TableText]) -> TableText:
    holders: dict[str, list[HeldQueues]] = {}
    for each in texts:
        holders |= decode_locks(each.text)
    held = {group: queues for group, queues in holders.items() if queues}
    return TableText(LOCKS, "", encode_locks(held))


def _merge_deletions(texts: Sequence[TableText]) -> TableText:
    deletions: dict[str, msgspec.Raw] = {}
    for each in texts:
        try:
            deletions |= msgspec.json.decode(each.text, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(f"bad list of deleted topics: {error}") from None
    return TableText(feed.DELETIONS, "", msgspec.json.encode(deletions))


_MERGES: Final[dict[str, Callable[[Sequence[TableText]], TableText]]] = {
    feed.TOPICS: _merge_topics,
    feed.GROUPS: _merge_groups,
    feed.DELETIONS: _merge_deletions,
    feed.OFFSETS: _merge_offsets,
    LOCKS: _merge_locks,
}


def _split(names: Collection[str], configs: Mapping[str, T]) -> tuple[dict[str, T], list[str]]:
    rows = {name: configs[name] for name in names if name in configs}
    return rows, [name for name in names if name not in configs]


def _rows_text(name: str, rows: bytes, gone: list[str]) -> TableText:
    text = msgspec.json.encode(_Rows(msgspec.Raw(rows), gone))
    return TableText(name, "", text, is_whole=False)


def _decode_rows(text: bytes) -> _Rows:
    try:
        return msgspec.json.decode(text, type=_Rows)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"bad change of a table: {error}") from None

"""The beginning of a leader's log: a member whose log is replaced begins there.

A member needs a new beginning if it lacks bytes that the leader has deleted, or if its log is
damaged. It gets an empty log that begins where the leader's begins, and all bytes from there
through Raft's messages. The log has a copy of all tables, so no other file has to be sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Self
from zlib import crc32

import msgspec

from rocketpost.errors import RemoteProtocolError
from rocketpost.model.members import Configuration, Member
from rocketpost.raft.core import Log
from rocketpost.server.group.roster import Roster
from rocketpost.store.queue.consume_queue import ConsumeQueue

_CRC_BYTES: Final = 4


class Beginning(msgspec.Struct, frozen=True):
    """The state of a group at the first position of a log."""

    first: int
    """First position of the log; the start of a segment."""
    spans: list[tuple[int, int]]
    """Term of the byte before it, and where that term begins; empty if there is none."""
    position: int
    """Position of the record that states the members."""
    members: list[tuple[str, str, bool]]
    """Name and address of each member at the first position, and whether it votes."""
    starts: dict[str, dict[int, int]] = {}
    """Offset of each queue at the first position, by topic and id."""

    @classmethod
    def of(cls, log: Log, roster: Roster, queues: Iterable[ConsumeQueue]) -> Self:
        """Return the beginning of a log."""
        starts: dict[str, dict[int, int]] = {}
        for queue in queues if log.first else ():
            starts.setdefault(queue.topic, {})[queue.queue_id] = int(queue.first_at(log.first))
        configuration = roster.at(log.first)
        return cls(
            log.first,
            [(term, start) for term, start in log.terms.before(log.first)[-1:]],
            configuration.position,
            [(each.name, each.address, each.is_voter) for each in configuration.members],
            starts,
        )

    def is_needed_by(self, log: Log) -> bool:
        """Tell whether a log must be replaced by one that begins here.

        It need not be if the two logs agree at this position. Then the leader sends the missing
        bytes, and a replacement would lose bytes that this member has acknowledged.
        """
        if self.first > log.end:
            return True
        term = self.spans[-1][0] if self.spans else 0
        return self.first > log.commit and log.terms.term_before(self.first) != term

    @property
    def configuration(self) -> Configuration:
        """The members at the first position."""
        return Configuration(self.position, tuple(Member(*each) for each in self.members))

    def encode(self) -> bytes:
        """Return the text for a peer."""
        text = msgspec.json.encode(self)
        return crc32(text).to_bytes(_CRC_BYTES, "big") + text

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read the text of a peer.

        Raises:
            RemoteProtocolError: It is malformed.
        """
        try:
            text = data[_CRC_BYTES:]
            if data[:_CRC_BYTES] != crc32(text).to_bytes(_CRC_BYTES, "big"):
                raise RemoteProtocolError("the beginning of a log has changed on its way")
            found = msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"the beginning of a log cannot be read: {error}") from None
        if found.first < 0 or not found.members:
            raise RemoteProtocolError(f"the beginning of a log is impossible: {found}")
        return found

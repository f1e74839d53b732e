"""Evidence in the log of a transaction that is no longer in memory, found by its unique key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from rocketpost.broker.transaction.log import Identity, identity_of
from rocketpost.codec.record import Record
from rocketpost.model.ids import Position
from rocketpost.model.names import CHECK_MAX_TOPIC, HALF_TOPIC
from rocketpost.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK

_COPIES_MAX: Final = 1024
_TIME_MAX: Final = 2**63 - 1


class Store(Protocol):
    """The part of the store that evidence uses."""

    @property
    def index(self) -> object | None:
        """The key index, if there is one."""
        ...

    def record_at(self, position: int) -> Record | None:
        """Return the record at a position."""
        ...

    def find(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[Position]:
        """Return positions of messages that may have this key, newest first."""
        ...


class Evidence:
    """Looks transactions up in the key index."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def is_available(self) -> bool:
        """Whether there is a key index; without one nothing is ever found."""
        return self._store.index is not None

    def commit_of(self, topic: str, wanted: Identity) -> Record | None:
        """Return the commit of a half whose destination is ``topic``."""
        for record in self._copies(topic, wanted):
            if record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
                return record
        return None

    def was_discarded(self, wanted: Identity) -> bool:
        """Tell whether a half was discarded and has not been resumed since."""
        discarded = next(self._copies(CHECK_MAX_TOPIC, wanted), None)
        if discarded is None:
            return False
        half = next(self._copies(HALF_TOPIC, wanted), None)
        return half is None or half.position < discarded.position

    def _copies(self, topic: str, wanted: Identity) -> Iterator[Record]:
        """Yield the records of a topic with this identity, newest first."""
        for position in self._store.find(
            topic, wanted.unique_key, count_max=_COPIES_MAX, begin_ms=0, end_ms=_TIME_MAX
        ):
            record = self._store.record_at(position)
            if record is None or record.topic != topic:
                continue
            if identity_of(record, record.properties) == wanted:
                yield record

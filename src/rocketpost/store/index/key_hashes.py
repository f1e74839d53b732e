"""Hashes of keys: an index entry has the hash of topic, ``#`` and key."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from rocketpost.kernel.hashing import extend_state, index_hashes, index_hashes_after
from rocketpost.store.draft import Appended

_TOPIC_COUNT_MAX: Final = 65_536
_NO_PAIRS: Final = array("q")


Runs = list[tuple[int, int, int]]
"""First pair, number of pairs and store time, for each run of messages with one store time."""


class KeyHashes:
    """Computes hashes, and remembers the state of the hash after each topic."""

    def __init__(self) -> None:
        self._states: dict[str, int] = {}

    def of(self, topic: str, keys: Iterable[str]) -> list[int]:
        """Return the hash of each key of a message."""
        state = self._states.get(topic)
        return index_hashes_after(self._state(topic) if state is None else state, keys)

    def gather(
        self, messages: Sequence[Appended], after: int, room: int
    ) -> tuple[int, array[int], Runs]:
        """Hash the keys of messages after a position, up to the first message without room.

        Args:
            messages: The messages, in the order of the log.
            after: Messages up to this position are skipped.
            room: The greatest number of keys.

        Returns:
            The number of messages gone through, hash and position of each key, and the runs.
        """
        states: list[int] = []
        words: list[str] = []
        positions: list[int] = []
        times: list[tuple[int, int]] = []
        newest_ms = -1
        done = 0
        for position, _, _, store_ms, topic, _, _, keys, _ in messages:
            if keys and position > after:
                room -= len(keys)
                if room < 0:
                    break
                state = self._states.get(topic)
                if state is None:
                    state = self._state(topic)
                if store_ms != newest_ms:
                    times.append((len(words), store_ms))
                    newest_ms = store_ms
                for key in keys:
                    states.append(state)
                    words.append(key)
                    positions.append(position)
            done += 1
        if not words:
            return done, _NO_PAIRS, []
        pairs = [0] * (2 * len(words))
        pairs[::2] = index_hashes(states, words)
        pairs[1::2] = positions
        times.append((len(words), 0))
        runs = [(begin, end - begin, ms) for (begin, ms), (end, _) in pairwise(times)]
        return done, array("q", pairs), runs

    def _state(self, topic: str) -> int:
        state = self._states.get(topic)
        if state is None:
            if len(self._states) >= _TOPIC_COUNT_MAX:
                self._states.clear()
            state = self._states[topic] = extend_state(0, topic + "#")
        return state

"""The presence of a slave's master: alive or not, as far as the slave can tell."""

from __future__ import annotations

from collections.abc import Callable


class MasterPresence:
    """The presence of a slave's master. Owned by the loop.

    The part that talks to the master sets it: true when the master has answered, false when it
    cannot be reached or was silent for too long. At first there is no master.
    """

    def __init__(self) -> None:
        self._is_alive = False
        self.is_acted_for = False
        """Whether this slave acts for its master, which clients do not find then."""
        self.serves_pulls = False
        """Whether this broker is a member of a group, which serves pulls in every role."""
        self.on_return: list[Callable[[], None]] = []
        """Called each time that the master is there again."""

    @property
    def is_alive(self) -> bool:
        """Whether the master is there for clients."""
        return self._is_alive and not self.is_acted_for

    def set_alive(self, is_alive: bool) -> None:
        """Note whether the master is alive."""
        self._change(is_alive, self.is_acted_for)

    def set_acted_for(self, is_acted_for: bool) -> None:
        """Note whether this slave acts for its master.

        A master that returns talks to its slaves before clients find it. Until then they are
        served here.
        """
        self._change(self._is_alive, is_acted_for)

    def _change(self, is_alive: bool, is_acted_for: bool) -> None:
        was_there = self.is_alive
        self._is_alive, self.is_acted_for = is_alive, is_acted_for
        if self.is_alive and not was_there:
            for listener in self.on_return:
                listener()

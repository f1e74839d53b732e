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
        self.on_return: list[Callable[[], None]] = []
        """Called each time that the master is alive again."""

    @property
    def is_alive(self) -> bool:
        """Whether the master is alive."""
        return self._is_alive

    def set_alive(self, is_alive: bool) -> None:
        """Note whether the master is alive."""
        was_alive, self._is_alive = self._is_alive, is_alive
        if is_alive and not was_alive:
            for listener in self.on_return:
                listener()

"""The settings in force, and the only place where an administrator changes them.

Only the keys that a settings class declares ``mutable`` may be changed. No path, no address and no
text that is handed to a shell is among them, so the remote take-overs of RocketMQ through its
configuration (CVE-2023-33246, CVE-2023-37582) have no counterpart here.

A change survives a restart: it is kept in ``config/brokerOverrides.json``, together with the value
that the configuration file had at that time. If the file has another value at the next start, it
was edited since, and the newer edit wins (ADR 0009).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from rocketpost import settings
from rocketpost.codec.faults import InvalidParameter, NoPermission
from rocketpost.errors import ConfigError, StoreError
from rocketpost.model.clock import Clock
from rocketpost.model.topic import DataVersion
from rocketpost.server.settings.foreign_keys import IGNORED, REFUSED_WHEN
from rocketpost.server.settings.live_bounds import live_problem

logger = logging.getLogger(__name__)

T = TypeVar("T")

OVERRIDES_FILE = "brokerOverrides.json"


class Override(msgspec.Struct, frozen=True):
    """A changed setting, and the value in the configuration file then, None if absent."""

    value: str
    file: str | None = None


def decode_overrides(data: bytes) -> dict[str, Override]:
    """Read ``brokerOverrides.json``.

    Raises:
        StoreError: The file cannot be read.
    """
    try:
        return msgspec.json.decode(data, type=dict[str, Override])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{OVERRIDES_FILE} cannot be read: {error}") from None


def apply_overrides(
    from_file: Mapping[str, str],
    overrides: Mapping[str, Override],
    classes: Sequence[type],
    *,
    now_ms: int,
) -> tuple[dict[str, str], dict[str, Override]]:
    """Return the values to start with, and the overrides that still hold.

    An override is dropped if the configuration file was edited since, or if its key may no longer
    be changed, or not to that value.
    """
    values, kept = dict(from_file), {}
    for key, override in overrides.items():
        if not _is_mutable(key, classes):
            logger.warning("override dropped: key=%s reason=it may not be changed", key)
        elif from_file.get(key) != override.file:
            logger.warning("override dropped: key=%s reason=the file was edited since", key)
        elif problem := live_problem(key, override.value, from_file=from_file, now_ms=now_ms):
            logger.warning("override dropped: key=%s reason=%s", key, problem)
        else:
            logger.info("override in force: key=%s value=%s", key, override.value)
            values[key] = override.value
            kept[key] = override
    return values, kept


class LiveConfig:
    """The settings in force. Owned by the event loop.

    Args:
        sections: One object of each settings class.
        from_file: The properties of the configuration file.
        overrides: The overrides in force at the start.
    """

    def __init__(
        self,
        *sections: Any,
        clock: Clock,
        from_file: Mapping[str, str] | None = None,
        overrides: Mapping[str, Override] | None = None,
    ) -> None:
        self._sections = {type(section): section for section in sections}
        self._clock = clock
        self._from_file = dict(from_file or {})
        self._overrides = dict(overrides or {})
        self._watchers: list[tuple[type, Callable[[Any], None]]] = []
        self._guards: list[tuple[type, Callable[[Any], None]]] = []
        self.version = DataVersion(timestamp=clock.now_ms())
        self.revision = 0
        """Number that grows with every change, so that changes are saved."""

    def section(self, cls: type[T]) -> T:
        """Return the settings of one class as they are now."""
        section = self._sections[cls]
        assert isinstance(section, cls)
        return section

    def watch(self, cls: type[T], callback: Callable[[T], None]) -> None:
        """Call ``callback`` with the new settings of ``cls`` after each change."""
        self._watchers.append((cls, callback))

    def guard(self, cls: type[T], check: Callable[[T], None]) -> None:
        """Call ``check`` with the settings of ``cls`` before each change.

        It raises ``ConfigError`` if they would do harm just now.
        """
        self._guards.append((cls, check))

    def properties(self) -> dict[str, str]:
        """Return every setting as text, by key."""
        values: dict[str, str] = {}
        for section in self._sections.values():
            values |= settings.to_properties(section)
        return values

    def change(self, values: Mapping[str, str]) -> None:
        """Change settings, all or none.

        Raises:
            NoPermission: A key is unknown or fixed while the broker runs; the text names it.
            InvalidParameter: A value does not fit its key; the text names it.
        """
        for key in values:
            if not _is_mutable(key, list(self._sections)):
                raise NoPermission(self._why_not(key))
        for key, value in values.items():
            problem = live_problem(
                key, value, from_file=self._from_file, now_ms=self._clock.now_ms()
            )
            if problem:
                raise InvalidParameter(problem)
        replaced = {}
        for cls, section in self._sections.items():
            mine = {key: values[key] for key in settings.keys_of(cls) if key in values}
            if not mine:
                continue
            try:
                replaced[cls] = settings.apply_changes(section, mine)
                for guarded, check in self._guards:
                    if guarded is cls:
                        check(replaced[cls])
            except ConfigError as error:
                raise InvalidParameter(str(error)) from None
        if not replaced:
            return
        self._sections |= replaced
        for key, value in values.items():
            self._overrides[key] = Override(value, self._from_file.get(key))
            logger.info("setting changed: key=%s value=%s", key, value)
        self.version = self.version.next(self._clock.now_ms())
        self.revision += 1
        for cls, callback in self._watchers:
            if cls in replaced:
                callback(replaced[cls])

    @property
    def mutable_keys(self) -> list[str]:
        """The keys that may be changed, sorted."""
        return sorted(
            key
            for cls in self._sections
            for key, field in settings.keys_of(cls).items()
            if field.metadata["mutable"]
        )

    def to_json(self) -> bytes:
        """Return the text of ``brokerOverrides.json``."""
        return msgspec.json.format(msgspec.json.encode(self._overrides), indent=2)

    def _why_not(self, key: str) -> str:
        if any(key in settings.keys_of(cls) for cls in self._sections):
            return f"{key!r} cannot be changed while the broker runs: set it in its file, restart"
        if key in IGNORED:
            return f"{key} has no effect here: {IGNORED[key]}"
        if key in REFUSED_WHEN:
            return f"{key} cannot be changed while the broker runs: {REFUSED_WHEN[key].reason}"
        named = (
            settings.with_suggestion(key, self.mutable_keys) if key.isidentifier() else repr(key)
        )
        return f"{named} cannot be changed while the broker runs: there is no such setting"


def _is_mutable(key: str, classes: Sequence[type]) -> bool:
    for cls in classes:
        field = settings.keys_of(cls).get(key)
        if field is not None:
            return bool(field.metadata["mutable"])
    return False

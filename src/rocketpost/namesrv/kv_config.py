"""The key-value table of a name server: immutable namespaces of texts.

One namespace has a meaning: ``ORDER_TOPIC_CONFIG`` lists the queues and brokers of each ordered
topic. A change returns a new table, so that the server can write it to disk before it shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketpost.codec.bodies.kv import decode_kv_file, encode_kv_file
from rocketpost.codec.faults import InvalidParameter, SystemBusy

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
KEY_LENGTH_MAX: Final = 255
VALUE_LENGTH_MAX: Final = 65_535
ENTRIES_MAX: Final = 65_536
TEXT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum size of the table as text, which is rewritten with every change."""


class KvConfig:
    """All namespaces. Immutable."""

    def __init__(self, namespaces: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._namespaces = dict(namespaces or {})

    @classmethod
    def from_text(cls, text: bytes) -> KvConfig:
        """Read the text of ``kvConfig.json``.

        Raises:
            RemoteProtocolError: The text is malformed.
        """
        return cls(decode_kv_file(text))

    def to_text(self) -> bytes:
        """Return the text of ``kvConfig.json``."""
        return encode_kv_file(self._namespaces)

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value, or None."""
        return self._namespaces.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return one namespace, or None."""
        return self._namespaces.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> KvConfig:
        """Return the table with one value set.

        Raises:
            InvalidParameter: A name is blank, too long or has control characters, or the value is
                too long.
            SystemBusy: The table is full.
        """
        _check_key(namespace, "namespace")
        _check_key(key, "key")
        if len(value) > VALUE_LENGTH_MAX:
            raise InvalidParameter(
                f"the value has {len(value)} characters; at most {VALUE_LENGTH_MAX} are allowed"
            )
        table = {**self._namespaces.get(namespace, {}), key: value}
        after = KvConfig({**self._namespaces, namespace: table})
        if sum(map(len, after._namespaces.values())) > ENTRIES_MAX:
            raise SystemBusy(f"the table is full: it takes {ENTRIES_MAX} entries")
        if len(after.to_text()) > TEXT_BYTES_MAX:
            raise SystemBusy(f"the table is full: it takes {TEXT_BYTES_MAX} bytes as text")
        return after

    def delete(self, namespace: str, key: str) -> KvConfig:
        """Return the table without one key; the same object if the key was absent."""
        if self.get(namespace, key) is None:
            return self
        table = dict(self._namespaces[namespace])
        del table[key]
        return KvConfig({**self._namespaces, namespace: table})


def _check_key(text: str, what: str) -> None:
    if not text.strip():
        raise InvalidParameter(f"the {what} is blank")
    if len(text) > KEY_LENGTH_MAX:
        raise InvalidParameter(
            f"the {what} has {len(text)} characters; at most {KEY_LENGTH_MAX} are allowed"
        )
    if not text.isprintable():
        raise InvalidParameter(f"the {what} has control characters")

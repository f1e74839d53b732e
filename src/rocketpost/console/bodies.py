"""Bodies of messages as safe text: cut, without control characters, masked. Pure."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from rocketpost.admin.body import body_text
from rocketpost.client.message import ReceivedMessage
from rocketpost.errors import RemoteProtocolError
from rocketpost.model import properties as names

FORMS: Final = ("auto", "text", "json", "hex", "base64")
SHOWN_BYTES_MAX: Final = 64 * 1024
PREVIEW_LENGTH: Final = 120
MASK: Final = "•••"
_JSON_BYTES_MAX: Final = 1024 * 1024
_SECRET_WORDS: Final = ("secret", "password", "credential", "accesskey")
_KEPT: Final = frozenset("\n\t")
_TOPICS: Final = (names.RETRY_TOPIC, names.REAL_TOPIC, "DLQ_ORIGIN_TOPIC")
"""Properties that name the topic of the original."""


class ShownBody(msgspec.Struct, frozen=True, rename="camel"):
    """A body for the page."""

    text: str
    form: str
    size: int
    is_cut: bool
    problem: str = ""


def mask_paths(masks: Sequence[str], message: ReceivedMessage) -> list[list[str]]:
    """Return the paths of JSON members that a message's body does not show.

    Rules for its topic also hold for its copies elsewhere: retries, dead letters, half messages,
    messages that wait for their time.
    """
    if not masks:
        return []
    topics = {message.record.topic, "*", *(message.properties.get(name) for name in _TOPICS)}
    rules = [rule.partition(":") for rule in masks]
    return [path.split(".") for name, _, path in rules if name in topics]


def show_body(message: ReceivedMessage, form: str, masks: Sequence[str] = ()) -> ShownBody:
    """Return the body in a form; ``auto`` is JSON if it is JSON, text if it is text, else hex."""
    try:
        body = message.body
    except RemoteProtocolError as error:
        return ShownBody("", "text", message.stored_bytes, False, str(error))
    paths = mask_paths(masks, message)
    parsed = _parse(body) if form in ("auto", "json") or paths else None
    if paths:
        if parsed is None:
            return ShownBody(MASK, "text", len(body), False)
        for path in paths:
            _mask(parsed, path)
        form = "json"
    if form == "auto":
        form = "json" if parsed is not None else "text" if _is_text(body) else "hex"
    if form == "json" and parsed is not None:
        text = json.dumps(parsed, indent=2, ensure_ascii=False)
        cut = len(text) > SHOWN_BYTES_MAX
        return ShownBody(make_visible(text[:SHOWN_BYTES_MAX]), form, len(body), cut)
    part = body[:SHOWN_BYTES_MAX]
    shown = body_text(part, "utf-8" if form in ("text", "json") else form).lstrip("\n")
    return ShownBody(make_visible(shown), form, len(body), len(part) < len(body))


def preview_body(message: ReceivedMessage, masks: Sequence[str] = ()) -> str:
    """Return the beginning of a body in one line."""
    if mask_paths(masks, message):
        shown = show_body(message, "json", masks).text
        return " ".join(shown.split())[:PREVIEW_LENGTH]
    try:
        body = message.body[: PREVIEW_LENGTH * 4]
    except RemoteProtocolError as error:
        return f"({error})"
    text = make_visible(body.decode("utf-8", "replace"))
    return " ".join(text.split())[:PREVIEW_LENGTH]


def make_visible(text: str) -> str:
    """Return text in which control and direction characters are shown instead of obeyed."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char in _KEPT or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co")
        else _show(char)
        for char in text
    )


def is_secret_key(key: str) -> bool:
    """Tell whether the value of a setting is not shown."""
    return any(word in key.lower() for word in _SECRET_WORDS)


def _show(char: str) -> str:
    code = ord(char)
    return chr(0x2400 + code) if code < 0x20 else f"⟦U+{code:04X}⟧"


def _parse(body: bytes) -> Any:
    """Return the JSON object or array of a body; None if it is not one or too large."""
    if len(body) > _JSON_BYTES_MAX or body[:1].strip()[:1] not in (b"{", b"[", b""):
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def _mask(value: Any, path: list[str]) -> None:
    if isinstance(value, list):
        for each in value:
            _mask(each, path)
    elif isinstance(value, dict) and path[0] in value:
        if len(path) == 1:
            value[path[0]] = MASK
        else:
            _mask(value[path[0]], path[1:])


def _is_text(body: bytes) -> bool:
    try:
        text = body[:4096].decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < 4090:
            return False
        text = body[: error.start].decode("utf-8")
    odd = sum(1 for char in text if not char.isprintable() and char not in "\r\n\t")
    return odd * 10 <= len(text)

"""Hashes of passwords, by scrypt. Pure but for chance."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

LENGTH_MIN: Final = 10
LENGTH_MAX: Final = 200
_COST: Final = 1 << 14
_BLOCK: Final = 8
_MEMORY_MAX: Final = 64 * 1024 * 1024
_SALT_BYTES: Final = 16
_FORM: Final = "scrypt"


def hash_password_blocking(password: str) -> str:
    """Return the text that is kept instead of a password."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"{_FORM}${_COST}${_BLOCK}${salt.hex()}${_derive(password, salt, _COST, _BLOCK).hex()}"


def is_password_blocking(password: str, kept: str | None) -> bool:
    """Tell whether a password is the one of a kept text.

    The work is done even without a kept text, so that unknown names take as long as known ones.
    """
    if kept is None:
        _derive(password, b"\0" * _SALT_BYTES, _COST, _BLOCK)
        return False
    form, cost, block, salt, derived = kept.split("$")
    if form != _FORM:
        return False
    found = _derive(password, bytes.fromhex(salt), int(cost), int(block))
    return hmac.compare_digest(found, bytes.fromhex(derived))


def password_problem(password: str, name: str) -> str | None:
    """Return the key of the text that says why a password is not accepted; None if it is."""
    if len(password) < LENGTH_MIN:
        return "login.password_short"
    if len(password) > LENGTH_MAX:
        return "login.password_long"
    if password.casefold() == name.casefold() or len(set(password)) < 4:
        return "login.password_plain"
    return None


def _derive(password: str, salt: bytes, cost: int, block: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=cost, r=block, p=1, maxmem=_MEMORY_MAX, dklen=32
    )

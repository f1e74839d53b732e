"""Encryption of secrets in the table of users: AES-256-GCM with a key from a file.

A sealed secret is ``key id . nonce . text``, each part in Base64 for URLs. The user's name is bound
to the text, so that a sealed secret cannot be moved to another user.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from typing import Any, Final

from rocketpost.errors import ConfigError, StoreError

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class AesCipher:
    """Seals secrets with one key.

    Args:
        key: The key, of 32 bytes.

    Raises:
        ConfigError: The key has another size, or the package ``cryptography`` is missing.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigError(f"authSecretKeyFile must hold {KEY_BYTES} bytes, in hex or Base64")
        self._aes = _aes(key)
        self._id = hashlib.sha256(b"rocketpost" + key).hexdigest()[:8]

    def __repr__(self) -> str:
        return f"<cipher {self._id}>"

    def seal(self, name: str, secret: str) -> str:
        """Return the sealed secret of a user."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        text = self._aes.encrypt(nonce, secret.encode(), name.encode())
        return ".".join((self._id, *(base64.urlsafe_b64encode(b).decode() for b in (nonce, text))))

    def open(self, name: str, sealed: str) -> str:
        """Return a user's secret.

        Raises:
            StoreError: It was sealed with another key, for another user, or is damaged.
        """
        key_id, *parts = sealed.split(".")
        if key_id != self._id:
            raise StoreError(
                f"the secret of {name} is sealed with the key {key_id}, and authSecretKeyFile "
                f"has the key {self._id}"
            )
        try:
            nonce, text = (base64.urlsafe_b64decode(part) for part in parts)
            opened: bytes = self._aes.decrypt(nonce, text, name.encode())
            return opened.decode()
        except Exception as error:
            raise StoreError(f"the sealed secret of {name} is damaged: {error!r}") from None


def load_cipher_blocking(path: str) -> AesCipher | None:
    """Return the cipher of the key in a file, or None if no file is given.

    Raises:
        ConfigError: The file cannot be read, has no key, or others may read it.
    """
    if not path:
        return None
    path = os.path.expanduser(path)
    try:
        with open(path, "rb") as file:
            data = file.read(1024)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise ConfigError(f"authSecretKeyFile={path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"authSecretKeyFile={path} may be read by others: chmod 600 {path}")
    return AesCipher(parse_key(data))


def parse_key(data: bytes) -> bytes:
    """Read a key: 32 bytes as they are, or written in hex or Base64.

    Raises:
        ConfigError: It is none of these.
    """
    if len(data) == KEY_BYTES:
        return data
    text = data.strip()
    try:
        return binascii.unhexlify(text)
    except binascii.Error:
        pass
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ConfigError(
            f"authSecretKeyFile must hold {KEY_BYTES} bytes, in hex or Base64; "
            "make one with: openssl rand -hex 32"
        ) from None


def _aes(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigError(
            "authSecretKeyFile needs the package cryptography: pip install 'rocketpost[secure]'"
        ) from None
    return AESGCM(key)

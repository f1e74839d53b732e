"""The file of users and rules."""

from __future__ import annotations

import posixpath
from typing import Final

from rocketpost.access.table import AccessTable, Cipher
from rocketpost.store.files import RealFiles
from rocketpost.store.tables import TableFile

TABLE_FILE: Final = "auth.json"


def access_file(directory: str, cipher: Cipher | None) -> TableFile[AccessTable]:
    """Return the file of users and rules in a directory.

    Args:
        directory: The directory, which exists.
        cipher: Seals secrets; None to store them in clear text.
    """

    def decode(data: bytes) -> AccessTable:
        table = AccessTable(cipher)
        table.load(data)
        return table

    return TableFile(
        posixpath.join(directory, TABLE_FILE),
        files=RealFiles(),
        decode=decode,
        empty=lambda: AccessTable(cipher),
        is_guarded=True,
        is_private=True,
    )

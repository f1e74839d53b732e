"""Everything that is read of a request before its user is known, and rules of any shape."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from fuzz.finding import Find
from fuzz.json_shapes import body
from fuzz.supply import Supply
from rocketpost.access.info import UserInfo
from rocketpost.access.plain_acl import read_plain_acl
from rocketpost.access.table import AccessTable
from rocketpost.codec.access import decode_rules, decode_user
from rocketpost.codec.command import decode_commands
from rocketpost.codec.frames import FrameDecoder
from rocketpost.codec.lenient_json import decode_any
from rocketpost.errors import RocketpostError
from rocketpost.server.access.audit import NoAudit
from rocketpost.server.access.gate import Gate, LoginFailed
from rocketpost.server.settings.namesrv import NamesrvConfig

_KNOWN = ("AccessKey", "Signature", "root", "User:root", "Topic:*", "Allow", "policies", "entries")
_SECRET = "not-to-be-guessed"


class Target:
    """A gate with one user, whose secret no input has."""

    def __init__(self) -> None:
        self._table = AccessTable()
        user = UserInfo(username="root", password=_SECRET, user_type="Super")
        self._table.create_user(user, caller=None)
        config = NamesrvConfig(authentication_enabled=True, authorization_enabled=True)
        self._gate = Gate(self._table, config, cluster="C", audit=NoAudit())

    def check(self, data: bytes) -> None:
        """Offer bytes as frames to the gate, and as bodies to the table."""
        connection: Any = SimpleNamespace(
            peer=("10.0.0.1", 1), peer_text="10.0.0.1:1", certificate_user=""
        )
        try:
            for command in decode_commands(FrameDecoder().feed(data)):
                try:
                    self._gate.admit(connection, command)
                except LoginFailed:
                    continue
                raise Find("a request without the secret was admitted")
        except RocketpostError:
            pass
        self._check_bodies(body(Supply(data), _KNOWN))

    def _check_bodies(self, text: bytes) -> None:
        for decode, change in (
            (decode_user, _create),
            (decode_rules, _put),
        ):
            table = AccessTable()
            table.load(self._table.to_json())
            try:
                change(table, decode(text))
            except RocketpostError:
                continue
            again = AccessTable()
            again.load(table.to_json())
            if again.to_json() != table.to_json():
                raise Find("the table does not read back")
        with contextlib.suppress(RocketpostError):
            read_plain_acl(decode_any(text))

    def close(self) -> None:
        """Do nothing: there are no files."""


def _create(table: AccessTable, info: Any) -> None:
    table.create_user(info, caller=None)


def _put(table: AccessTable, info: Any) -> None:
    table.put_rules(info, caller=None)

"""What a client claims about itself does not reach the leader by way of a follower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.server.access.gate import CLIENT_HOST, CLIENT_USER, LEADER_TERM, Caller
from rocketpost.server.group.serving.forwarding import Forwarding


class Leader:
    """Notes the fields of a request."""

    fields: Mapping[str, str]

    async def request(self, code: int, *, fields: Mapping[str, str], **_: Any) -> Command:
        self.fields = fields
        return Command()


def forwarding(*, logs_in: bool) -> Forwarding:
    made = object.__new__(Forwarding)
    made._logins = object() if logs_in else None  # type: ignore[assignment]
    made._term = lambda: 3
    return made


@pytest.mark.parametrize("logs_in", [True, False])
@pytest.mark.parametrize("caller", [None, Caller("norm", "10.0.0.7")])
async def test_a_client_cannot_claim_another_user(caller: Caller | None, logs_in: bool) -> None:
    claim = {"topic": "T", CLIENT_USER: "root", LEADER_TERM: "7"}
    command = Command(RequestCode.SEND_MESSAGE, text_fields=claim)
    command.caller = caller
    leader = Leader()
    await forwarding(logs_in=logs_in)._request(leader, command)  # type: ignore[arg-type]
    expected = {"topic": "T", CLIENT_HOST: "true", LEADER_TERM: "3"}
    if logs_in and caller is not None:
        expected |= {CLIENT_HOST: "10.0.0.7", CLIENT_USER: "norm"}
    assert leader.fields == expected

"""An address server that lists nothing, nonsense or fails leaves the name servers as they are."""

from __future__ import annotations

import pytest

from rocketpost.server.name_servers import address_server as module
from rocketpost.server.name_servers.address_server import AddressServer
from rocketpost.server.settings.broker import BrokerConfig


class Lists:
    """Answers of the address server, one after the other."""

    def __init__(self, *answers: list[str] | Exception) -> None:
        self._answers = list(answers)
        self.urls: list[str] = []

    def fetch_blocking(self, url: str) -> list[str]:
        self.urls.append(url)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_failures_are_logged_once_each_until_a_list_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = OSError("connection refused")
    lists = Lists(refused, refused, [], ["nonsense"], ["a:1", "b:2"], refused)
    monkeypatch.setattr(module, "fetch_addresses_blocking", lists.fetch_blocking)
    server = AddressServer(BrokerConfig(address_server="example.org", address_group="g"))
    found = [await server.fetch() for _ in range(6)]
    assert found == [None, None, None, None, ["a:1", "b:2"], None]
    assert [message.partition("reason=")[2] for message in caplog.messages] == [
        "connection refused",
        "it lists none",
        "namesrvAddr: 'nonsense' is not host:port",
        "connection refused",
    ]
    assert len(set(lists.urls)) == 1
    assert "example.org" in lists.urls[0]

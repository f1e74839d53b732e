from __future__ import annotations

import pytest

from client.network import Answer, FakeNetwork
from rocketpost.client import ClientConfig, NoNameServer, name_servers
from rocketpost.client.name_servers import NameServers, parse_addresses
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command


def servers(network: FakeNetwork, text: str | None) -> NameServers:
    connector = network.connector(on_request=lambda connection, command: None)
    return NameServers(ClientConfig(name_servers=text), connector)


def test_addresses_are_split_and_endpoints_reduced() -> None:
    assert parse_addresses(" a:1; b:2;;a:1") == ["a:1", "b:2"]
    assert parse_addresses("http://host:80/") == ["host:80"]


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, "http://jmenv.tbsite.net:8080/rocketmq/nsaddr"),
        ({"address_server": "h:1", "address_group": "g"}, "http://h:1/rocketmq/g"),
        ({"unit_name": "u"}, "http://jmenv.tbsite.net:8080/rocketmq/nsaddr-u?nofix=1"),
    ],
)
async def test_the_address_server_is_found_where_java_looks(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], url: str
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    asked: list[str] = []

    def fetch(url: str) -> list[str]:
        asked.append(url)
        return ["a:1"]

    monkeypatch.setattr(name_servers, "fetch_addresses_blocking", fetch)
    connector = FakeNetwork().connector(on_request=lambda connection, command: None)
    await NameServers(ClientConfig(**options), connector).start()  # type: ignore[arg-type]
    assert asked == [url]


async def test_the_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "env:1")
    assert servers(FakeNetwork(), "arg:1").addresses == ["arg:1"]
    assert servers(FakeNetwork(), None).addresses == ["env:1"]


async def test_without_addresses_the_http_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    answers: list[list[str] | Exception] = [["a:1"], OSError("down"), ["b:1"]]

    def fetch(url: str) -> list[str]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(name_servers, "fetch_addresses_blocking", fetch)
    found = servers(FakeNetwork(), None)
    assert found.uses_http
    await found.start()
    assert found.addresses == ["a:1"]
    await found.poll()
    assert found.addresses == ["a:1"]  # a failure keeps what we have
    await found.poll()
    assert found.addresses == ["b:1"]


async def test_knowing_no_name_server_is_an_error_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)

    def fetch(url: str) -> list[str]:
        raise OSError("no such host")

    monkeypatch.setattr(name_servers, "fetch_addresses_blocking", fetch)
    with pytest.raises(NoNameServer, match="NAMESRV_ADDR"):
        await servers(FakeNetwork(), None).start()


async def test_the_next_server_is_used_when_one_is_gone() -> None:
    network = FakeNetwork()

    def serve(command: Command) -> Answer:
        return Answer(body=b"ok")

    network.servers = {"a:1": serve, "b:1": serve}
    found = servers(network, "a:1;b:1")
    assert (await found.request(105)).body == b"ok"
    first = found.addresses[0]
    network.cut(first)
    for _ in range(3):
        assert (await found.request(105)).body == b"ok"
    assert found.addresses[-1] == first
    network.cut(found.addresses[0])
    with pytest.raises(NoNameServer, match="cannot connect"):
        await found.request(105)


async def test_a_silent_server_is_left_for_another() -> None:
    network = FakeNetwork()
    network.servers = {"a:1": lambda command: None, "b:1": lambda command: Answer(body=b"ok")}
    found = servers(network, "a:1;b:1")
    for _ in range(2):
        assert (await found.request(105, timeout=0.2)).body == b"ok"
    assert len(network.sent(105, "a:1")) <= 1


async def test_a_broker_is_distinguished_from_a_name_server() -> None:
    def refuse(command: Command) -> Answer:
        return Answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    network = FakeNetwork()
    network.servers = {"b:10911": refuse, "n:9876": lambda command: Answer()}
    both = servers(network, "b:10911;n:9876")
    assert (await both.request(RequestCode.GET_ROUTEINFO_BY_TOPIC)).code == 0
    with pytest.raises(NoNameServer, match="b:10911 is not a name server; is it a broker"):
        await servers(network, "b:10911").request(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    new = await servers(network, "b:10911").request(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    assert new.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED  # old name servers lack some

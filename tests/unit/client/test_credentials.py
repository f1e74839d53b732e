"""Signatures, and that nobody sees the secret in them."""

from __future__ import annotations

import hmac
import pickle
from base64 import b64encode
from collections.abc import Callable

import pytest

from client.brokers import NAMESRV, broker, network_of, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ClientConfig,
    Credentials,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumerConfig,
)
from rocketpost.client.credentials import credentials_of, environment_credentials
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import NoPermission
from rocketpost.errors import ConfigError

KEYS = Credentials("rocketmq2", "12345678", "temporary")


def is_signed(command: Command, secret: str) -> bool:
    """Judge as a broker does: by what arrived alone."""
    fields = dict(command.fields)
    signature = fields.pop("Signature", None)
    content = "".join(fields[name] for name in sorted(fields)).encode() + bytes(command.body)
    return signature == b64encode(hmac.digest(secret.encode(), content, "sha1")).decode()


def test_the_values_are_signed_in_the_order_of_their_names_and_then_the_body() -> None:
    signed = KEYS.sign({"topic": "T", "a": "1", "Signature": "old"}, [b"bo", memoryview(b"dy")])
    content = b"rocketmq2" + b"temporary" + b"1" + b"T" + b"body"
    digest = hmac.digest(b"12345678", content, "sha1")
    assert signed["Signature"] == b64encode(digest).decode()
    assert (signed["AccessKey"], signed["SecurityToken"]) == ("rocketmq2", "temporary")
    assert "SecurityToken" not in Credentials("a", "b").sign(None, [])


def test_the_fields_of_a_caller_stay_as_they_are() -> None:
    fields = {"topic": "T"}
    KEYS.sign(fields, [])
    assert fields == {"topic": "T"}


@pytest.mark.parametrize("make", [Credentials, credentials_of])
def test_half_of_the_keys_is_refused(make: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match="a secret key is missing"):
        make("a", "")
    with pytest.raises(ConfigError, match="an access key is missing"):
        make("", "b")
    assert credentials_of(None, "", None) is None


def test_nothing_that_is_printed_has_the_secret() -> None:
    for config in (ClientConfig, ProducerConfig, PullConsumerConfig):
        text = repr(config(credentials=KEYS))
        assert "12345678" not in text
        assert "temporary" not in text
        assert "rocketmq2" in text
    assert pickle.loads(pickle.dumps(KEYS)) == KEYS


def test_the_environment_has_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKETMQ_SECURITY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert environment_credentials() is None
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "a")
    with pytest.raises(ConfigError, match="a secret key is missing"):
        environment_credentials()
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "b")
    assert environment_credentials() == Credentials("a", "b")


async def test_every_request_is_signed(
    use_network: Callable[[FakeNetwork], FakeNetwork],
) -> None:
    network = use_network(
        network_of(
            {"T": route_of({"a": "a:1"})},
            {"a:1": broker()},
        )
    )
    config = ProducerConfig(name_servers=NAMESRV, credentials=KEYS)
    async with Producer("P", config=config) as producer:
        queue = MessageQueue("a", 0, "T")
        await producer.send(Message("T", b"x"), queue=queue)
        await producer.send(Message("T", b"x"), queue=queue)
        await producer.send_batch([Message("T", b"y"), Message("T", b"z")])
        await producer.send_oneway(Message("T", b"w"))
    seen = [command for _, command in network.requests]
    codes = {command.code for command in seen}
    assert {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
    } <= codes
    assert all(is_signed(command, "12345678") for command in seen)
    assert not any(is_signed(command, "another") for command in seen)


async def test_without_keys_nothing_is_added(
    use_network: Callable[[FakeNetwork], FakeNetwork],
) -> None:
    network = use_network(network_of({"T": route_of({"a": "a:1"})}, {"a:1": broker()}))
    async with Producer("P", name_servers=NAMESRV) as producer:
        await producer.send(Message("T", b"x"))
    for _, command in network.requests:
        assert not {"AccessKey", "Signature", "SecurityToken"} & set(command.fields)


async def test_other_refusals_do_not_speak_of_keys(
    use_network: Callable[[FakeNetwork], FakeNetwork],
) -> None:
    closed = Answer(ResponseCode.NO_PERMISSION, remark="the topic T is not writable")
    use_network(network_of({"T": route_of({"a": "a:1"})}, {"a:1": lambda command: closed}))
    config = ProducerConfig(name_servers=NAMESRV, retries=0)
    async with Producer("P", config=config) as producer:
        with pytest.raises(NoPermission) as raised:
            await producer.send(Message("T", b"x"))
    assert not any("signed" in note for note in getattr(raised.value, "__notes__", []))


async def test_a_refusal_says_that_keys_may_be_missing(
    use_network: Callable[[FakeNetwork], FakeNetwork],
) -> None:
    use_network(network_of({"T": route_of({"a": "a:1"})}, {"a:1": _refused}))
    for keys, said in ((None, True), (KEYS, False)):
        config = ProducerConfig(name_servers=NAMESRV, credentials=keys, retries=0)
        async with Producer("P", config=config) as producer:
            with pytest.raises(NoPermission) as raised:
                await producer.send(Message("T", b"x"))
        notes = " ".join(raised.value.__notes__)
        assert ("the request was not signed" in notes) is said


async def test_a_refusal_because_access_control_is_off_does_not_speak_of_keys(
    use_network: Callable[[FakeNetwork], FakeNetwork],
) -> None:
    remark = "access control is off on this server; set authenticationEnabled=true"
    off = Answer(ResponseCode.NO_PERMISSION, remark=remark)
    use_network(network_of({"T": route_of({"a": "a:1"})}, {"a:1": lambda command: off}))
    config = ProducerConfig(name_servers=NAMESRV, retries=0)
    async with Producer("P", config=config) as producer:
        with pytest.raises(NoPermission) as raised:
            await producer.send(Message("T", b"x"))
    assert not any("signed" in note for note in getattr(raised.value, "__notes__", []))


def _refused(command: Command) -> Answer:
    return Answer(ResponseCode.NO_PERMISSION, remark="username cannot be null.")

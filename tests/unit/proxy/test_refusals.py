from __future__ import annotations

import logging

import pytest

from rocketpost.errors import (
    ConnectionLost,
    GroupNotExist,
    NoPermission,
    RemoteProtocolError,
    RequestCodeNotSupported,
    RequestTimeout,
    RouteNotFound,
    ServerError,
    SlaveNotAvailable,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotExist,
    UnknownFault,
)
from rocketpost.proxy.refusals import OK, Refusal, common_status, refusal_of, status
from rocketpost.proxy.wire.enums import Code


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RouteNotFound("no route of T"), Code.TOPIC_NOT_FOUND, "no route of T"),
        (TopicNotExist("no topic T"), Code.TOPIC_NOT_FOUND, "no topic T"),
        (GroupNotExist("no group G"), Code.CONSUMER_GROUP_NOT_FOUND, "no group G"),
        (SystemBusy("try later"), Code.TOO_MANY_REQUESTS, "try later"),
        (UnknownFault(209, "polling full"), Code.TOO_MANY_REQUESTS, "polling full"),
        (RequestCodeNotSupported("code 9"), Code.NOT_IMPLEMENTED, "code 9"),
        (SubscriptionParseFailed("a ="), Code.ILLEGAL_FILTER_EXPRESSION, "a ="),
        (NoPermission("no rule matches"), Code.FORBIDDEN, "no rule matches"),
        (SlaveNotAvailable("no slave"), Code.HA_NOT_AVAILABLE, "no slave"),
        (UnknownFault(10, "not flushed"), Code.MASTER_PERSISTENCE_TIMEOUT, "not flushed"),
        (UnknownFault(12, "not copied"), Code.SLAVE_PERSISTENCE_TIMEOUT, "not copied"),
        (ServerError("odd"), Code.INTERNAL_SERVER_ERROR, "odd"),
        (UnknownFault(777), Code.INTERNAL_SERVER_ERROR, "code 777: "),
        (RequestTimeout("no answer in 3 s"), Code.PROXY_TIMEOUT, "no answer in 3 s"),
        (RemoteProtocolError("bad body"), Code.BAD_REQUEST, "bad body"),
    ],
)
def test_an_error_becomes_a_code_of_the_protocol(
    error: Exception, code: Code, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        refusal = refusal_of(error, "SendMessage")
    assert (refusal.code, refusal.text, refusal.delay) == (code, text, 0.0)
    assert str(refusal) == text
    assert caplog.records == []  # these are answers, not failures of the proxy


def test_a_refusal_stays_as_it_is() -> None:
    refusal = Refusal(Code.UNAUTHORIZED, "check signature failed", delay=0.5)
    assert refusal_of(refusal, "SendMessage") is refusal
    assert refusal.delay == 0.5


def test_a_failure_of_ours_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    refusal = refusal_of(ConnectionLost("lost b:1"), "AckMessage")
    assert (refusal.code, refusal.text) == (Code.INTERNAL_SERVER_ERROR, "lost b:1")
    [line] = caplog.records
    assert line.levelno == logging.WARNING
    assert line.getMessage() == "call failed: method=AckMessage reason=lost b:1"


def test_an_unexpected_error_is_logged_in_full_and_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusal = refusal_of(KeyError("inner detail"), "AckMessage")
    assert refusal.code is Code.INTERNAL_SERVER_ERROR
    assert refusal.text == "KeyError in the server; see its log"
    [line] = caplog.records
    assert line.levelno == logging.ERROR
    assert "inner detail" in caplog.text


def test_a_status_has_a_text_of_limited_length() -> None:
    assert (OK.code, OK.message) == (Code.OK, "OK")
    assert status(Code.FORBIDDEN).message == "FORBIDDEN"
    assert status(Code.FORBIDDEN, "no rule").message == "no rule"
    assert status(Code.FORBIDDEN, "x" * 5000).message == "x" * 2048


@pytest.mark.parametrize(
    ("codes", "common"),
    [
        (set(), Code.OK),
        ({int(Code.OK)}, Code.OK),
        ({int(Code.FORBIDDEN)}, Code.FORBIDDEN),
        ({int(Code.OK), int(Code.FORBIDDEN)}, Code.MULTIPLE_RESULTS),
    ],
)
def test_an_answer_with_several_entries_has_a_common_status(codes: set[int], common: Code) -> None:
    found = common_status(codes)
    assert (found.code, found.message) == (common, common.name)

"""Commands in both encodings."""

from __future__ import annotations

import msgspec
import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import (
    BINARY,
    JSON,
    ONEWAY,
    RESPONSE,
    Command,
    decode_command,
    encode_command,
    encode_response,
    to_fields,
)
from rocketpost.codec.faults import InvalidParameter, TopicNotExist, UnknownFault, fault_for
from rocketpost.codec.frames import Frame, FrameDecoder
from rocketpost.codec.headers.message import PullMessage, SendMessage, SendMessageV2
from rocketpost.errors import RemoteProtocolError


def through(data: bytes) -> Command:
    (frame,) = FrameDecoder().feed(data)
    return decode_command(frame)


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_a_request_round_trip(encoding: int) -> None:
    fields = {"a": "P", "b": "T", "e": "3", "m": "true"}
    data = encode_command(310, opaque=5, fields=fields, body_bytes=2, encoding=encoding) + b"xy"
    command = through(data)
    assert (command.code, command.opaque, command.body) == (310, 5, b"xy")
    assert command.fields == fields
    header = command.read(SendMessageV2)
    assert (header.producer_group, header.topic, header.queue_id) == ("P", "T", 3)
    assert header.batch is True
    assert not command.is_response
    assert not command.is_oneway
    assert "310" in repr(command)


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_a_response_takes_the_encoding_and_opaque_of_its_request(encoding: int) -> None:
    request = Command(1, opaque=-9, encoding=encoding)
    response = through(encode_response(request, 17, remark="no", fields={"x": "1"}))
    assert response.encoding == encoding
    assert (response.opaque, response.code, response.remark) == (-9, 17, "no")
    assert response.is_response
    assert response.language == "PYTHON"
    assert "response" in repr(response)
    with pytest.raises(TopicNotExist, match="no"):
        response.raise_for_code()


def test_a_response_that_also_says_oneway_is_a_response() -> None:
    command = Command(0, flag=RESPONSE | ONEWAY)
    assert command.is_response
    command.raise_for_code()
    assert "oneway" in repr(Command(0, flag=ONEWAY))


def test_numbers_for_strings_are_taken() -> None:
    header = b'{"code":10,"extFields":{"producerGroup":1,"topic":"T","queueId":2,"batch":false}}'
    command = decode_command(Frame(JSON, header, b""))
    assert command.read(SendMessage).producer_group == "1"


@pytest.mark.parametrize(
    ("ext", "named"),
    [
        (b'{"topic":"T","queueId":"0","queueOffset":"0"}', "consumerGroup"),
        (b'{"consumerGroup":"G","topic":"T","queueId":"x","queueOffset":"0"}', "queueId"),
        (b"[1]", "extFields"),
        (b"", "consumerGroup"),
    ],
)
def test_a_bad_field_is_named(ext: bytes, named: str) -> None:
    command = Command(11, raw_fields=msgspec.Raw(ext))
    with pytest.raises(InvalidParameter, match=named):
        command.read(PullMessage)


def test_a_header_cannot_claim_what_is_not_in_it() -> None:
    header = b'{"code":1,"#body":"AAAA","#encoding":1,"#text":{"a":"b"},"extFields":{"c":"d"}}'
    command = decode_command(Frame(JSON, header, b"x"))
    assert (command.body, command.encoding, command.fields) == (b"x", JSON, {"c": "d"})


def test_no_fields_at_all() -> None:
    assert Command(34).fields == {}


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="encoding 7"):
        decode_command(Frame(7, b"", b""))


def test_fields_of_a_struct() -> None:
    header = PullMessage(consumer_group="G", topic="T", queue_id=1, queue_offset=2)
    fields = to_fields(header)
    assert fields["queueOffset"] == "2"
    assert "subscription" not in fields
    sent = to_fields(SendMessage(producer_group="P", topic="T", batch=True))
    assert (sent["batch"], sent["unitMode"]) == ("true", "false")


def test_every_code_has_a_fault() -> None:
    fault = fault_for(9999, None)
    assert isinstance(fault, UnknownFault)
    assert str(fault_for(9999, "why")) == "code 9999: why"
    for code in ResponseCode:
        if code is not ResponseCode.SUCCESS:
            assert fault_for(code, "x").code == code

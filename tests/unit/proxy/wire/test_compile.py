"""The committed descriptor and enums are those of the proto text."""

from __future__ import annotations

from enum import IntEnum

import pytest

from rocketpost.proxy.wire import compile as compiler
from rocketpost.proxy.wire import enums, messages
from rocketpost.proxy.wire.descriptor import SERIALIZED


@pytest.mark.slow
def test_the_descriptor_is_that_of_the_proto_text() -> None:
    compiled = compiler.compile_proto()
    assert compiled == SERIALIZED
    assert compiler.render(compiled) == compiler.RESULT.read_text()


@pytest.mark.parametrize(
    "enum",
    [each for each in vars(enums).values() if isinstance(each, type) and each is not IntEnum],
)
def test_enums_are_those_of_the_proto_text(enum: type[IntEnum]) -> None:
    found = messages.POOL.FindEnumTypeByName(f"{messages.PACKAGE}.{enum.__name__}")
    assert {value.name: value.number for value in found.values} == {
        each.name: each.value for each in enum
    }


def test_messages_are_apart_from_those_of_other_packages() -> None:
    from google.protobuf import descriptor_pool

    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName(f"{messages.PACKAGE}.Message")


def test_times_in_milliseconds() -> None:
    message = messages.Message()
    messages.set_ms(message.system_properties.born_timestamp, 1_234_567)
    assert message.system_properties.born_timestamp.seconds == 1234
    assert messages.ms_of(message.system_properties.born_timestamp) == 1_234_567

"""The table of delay levels, as Java writes and reads it."""

from __future__ import annotations

import pytest

from rocketpost.codec.bodies.delay import decode_delay_offsets, encode_delay_offsets
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.topic import DataVersion


def test_levels_are_bare_keys() -> None:
    text = encode_delay_offsets(DataVersion(1, 0, 5), {18: 0, 2: 7})
    assert text == (
        b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"offsetTable":{2:7,18:0}}'
    )
    assert decode_delay_offsets(text).offset_table == {2: 7, 18: 0}


def test_javas_file_is_read() -> None:
    text = (
        b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":17\n\t},'
        b'\n\t"offsetTable":{18:0,"3":4\n\t}\n}'
    )
    table = decode_delay_offsets(text)
    assert table.offset_table == {18: 0, 3: 4}
    assert table.data_version == DataVersion(1, 0, 17)


def test_other_text_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_delay_offsets(b'{"offsetTable":[1]}')


def test_positions_of_our_own_are_written_beside_javas_table() -> None:
    text = encode_delay_offsets(DataVersion(1, 0, 5), {2: 7}, {2: 900})
    assert text.endswith(b'"offsetTable":{2:7},"deliveredBefore":{2:900}}')
    assert decode_delay_offsets(text).delivered_before == {2: 900}

"""The process of a broker takes its settings from a pipe."""

from __future__ import annotations

import os

from rocketpost.server.fleet.child import ChildOrder, encode_order, read_order_blocking

ORDER = ChildOrder("broker-a-1", {"listenPort": "0", "brokerName": "é"}, 2, True)


def test_an_order_arrives_as_it_was_given() -> None:
    reader, writer = os.pipe()
    line = encode_order(ORDER)
    os.write(writer, line[:5])
    os.write(writer, line[5:])
    assert read_order_blocking(reader) == ORDER
    os.close(writer)
    os.close(reader)


def test_a_pipe_that_closes_gives_no_order() -> None:
    reader, writer = os.pipe()
    os.write(writer, encode_order(ORDER)[:-1])
    os.close(writer)
    assert read_order_blocking(reader) is None
    os.close(reader)

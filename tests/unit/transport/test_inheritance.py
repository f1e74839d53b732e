"""In a forked child the parent's descriptors lead nowhere, and the parent keeps its own."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Iterable, Iterator

import pytest

from rocketpost.transport import inheritance


class Holder:
    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def descriptors(self) -> Iterable[int]:
        return self._numbers


@pytest.fixture(autouse=True)
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the descriptors of other tests alone."""
    monkeypatch.setattr(inheritance, "_holders", weakref.WeakSet())


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_inherited_descriptors_of_a_child_are_replaced_one_by_one(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    inherited = os.dup(near.fileno())  # as a fork copies it
    holder = Holder(inherited)
    inheritance.release_in_child(holder)
    inheritance._release_inherited()
    try:
        assert os.write(inherited, b"not for the peer") == 16
        assert os.read(inherited, 1) == b""
        assert not os.get_inheritable(inherited)
        near.send(b"still connected")
        assert far.recv(100) == b"still connected"
    finally:
        os.close(inherited)
    inheritance._release_inherited()  # nothing is left to release


def test_connections_closed_before_the_fork_are_forgotten() -> None:
    inheritance.release_in_child(Holder(10**9))  # would be an error
    inheritance._release_inherited()

"""Connections within one host: no pace of the kernel's."""

from __future__ import annotations

import socket
from typing import cast

import pytest

from rocketpost.transport.same_host import pace_to_others, put_pace_off


class FakeSocket:
    """A socket, as far as congestion control goes."""

    def __init__(self, local: str, peer: str, method: bytes) -> None:
        self._local = local
        self._peer = peer
        self.methods = [method]
        self.is_lost = False

    def getsockname(self) -> tuple[str, int]:
        return self._local, 10911

    def getpeername(self) -> tuple[str, int]:
        if self.is_lost:
            raise OSError(107, "Transport endpoint is not connected")
        return self._peer, 40000

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
        return self.methods[-1].ljust(size, b"\0")

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
        self.methods.append(value)


@pytest.mark.parametrize(
    ("local", "peer", "methods"),
    [
        ("127.0.0.1", "127.0.0.1", [b"bbr", b"reno"]),
        ("10.0.0.7", "10.0.0.7", [b"bbr2", b"reno"]),
        ("::1", "::1", [b"bbr", b"reno"]),
        ("10.0.0.7", "10.0.0.8", [b"bbr", b"reno", b"bbr"]),
        ("127.0.0.1", "127.0.0.1", [b"cubic"]),
        ("10.0.0.7", "10.0.0.8", [b"cubic"]),
    ],
)
def test_only_the_pace_within_a_host_is_given_up(
    local: str, peer: str, methods: list[bytes]
) -> None:
    fake = FakeSocket(local, peer, methods[0])
    sock = cast(socket.socket, fake)
    pace_to_others(sock, put_pace_off(sock))
    assert fake.methods == methods


def test_a_connection_that_is_lost_already_is_left_to_its_reader() -> None:
    fake = FakeSocket("10.0.0.7", "10.0.0.8", b"bbr")
    sock = cast(socket.socket, fake)
    method = put_pace_off(sock)
    fake.is_lost = True
    pace_to_others(sock, method)
    assert fake.methods == [b"bbr", b"reno"]

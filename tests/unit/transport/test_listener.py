from __future__ import annotations

import errno
import socket

import pytest

from rocketpost.transport.listener import bind_problem


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EADDRINUSE, "in use"), "is another server running there?"),
        (OSError(errno.EADDRNOTAVAIL, "no"), "this machine does not have that address"),
        (socket.gaierror(-2, "Name or service not known"), "set bindAddress"),
        (OSError(errno.EACCES, "denied"), "ports below 1024 need privileges"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
    ],
)
def test_only_an_address_in_use_hints_at_another_server(error: OSError, said: str) -> None:
    reason = bind_problem(error)
    assert said in reason
    assert ("another server" in reason) == (error.errno == errno.EADDRINUSE)

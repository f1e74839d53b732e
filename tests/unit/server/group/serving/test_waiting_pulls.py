from __future__ import annotations

from typing import Any

import pytest

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import ServiceNotAvailable
from rocketpost.server.group.serving import waiting_pulls
from rocketpost.server.group.serving.waiting_pulls import WaitingPulls
from rocketpost.server.routes.access import NOTHING
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.routes.follower_refusals import refusing_routes
from rocketpost.server.routes.route import NO_HEADER, plain


class Peer:
    """A connection that records its answers."""

    def __init__(self) -> None:
        self.is_open = True
        self.answers: list[bytes] = []

    def answer(self, *buffers: bytes) -> None:
        self.answers.append(b"".join(buffers))


def request(code: RequestCode = RequestCode.PULL_MESSAGE) -> Command:
    return Command(code=code, opaque=1)


def between(pulls: WaitingPulls) -> Dispatcher:
    """Return a dispatcher for the time between two terms."""
    codes = (
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.GET_ALL_TOPIC_CONFIG,
    )
    routes = [plain(code, NO_HEADER, NOTHING, lambda *_: None) for code in codes]
    return Dispatcher(pulls.replace(refusing_routes(routes, "later")))


def test_pulls_wait_for_the_next_term_and_others_are_refused() -> None:
    pulls = WaitingPulls()
    dispatcher = between(pulls)
    peer: Any = Peer()
    commands = [request(), request(RequestCode.LITE_PULL_MESSAGE)]
    for command in commands:
        dispatcher.handle(peer, command)
    assert peer.answers == []
    dispatcher.handle(peer, request(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert len(peer.answers) == 1
    served: list[Command] = []
    pulls.serve(lambda _, command: served.append(command))
    assert served == commands
    assert len(pulls) == 0


def test_pulls_of_lost_connections_are_dropped() -> None:
    pulls = WaitingPulls()
    peer: Any = Peer()
    between(pulls).handle(peer, request())
    peer.is_open = False
    pulls.serve(lambda *_: pytest.fail("nobody waits for the answer"))


def test_too_many_pulls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_pulls, "COUNT_MAX", 1)
    pulls = WaitingPulls()
    dispatcher, peer = between(pulls), Peer()
    for _ in range(2):
        dispatcher.handle(peer, request())  # type: ignore[arg-type]
    assert len(pulls) == 1
    assert b"%d" % ServiceNotAvailable.code in peer.answers[0]

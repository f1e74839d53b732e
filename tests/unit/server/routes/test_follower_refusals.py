"""A follower's routes: reads as they are, everything else refused like a slave of RocketMQ."""

from __future__ import annotations

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.server.routes.access import GET, of_cluster
from rocketpost.server.routes.follower_refusals import REFUSED, follower_routes, refusing_routes
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, plain


def served(*codes: Code) -> list[Route]:
    return [
        plain(code, NO_HEADER, of_cluster(GET), lambda _connection, _command, _header: Reply())
        for code in codes
    ]


def answer(route: Route) -> Reply:
    reply = route.handler(None, None, None)
    assert isinstance(reply, Reply)
    return reply


def test_reads_are_served_and_writes_refused() -> None:
    routes = {
        each.code: each for each in follower_routes(served(Code.PULL_MESSAGE, Code.SEND_MESSAGE))
    }
    assert routes.keys() == {Code.PULL_MESSAGE, *REFUSED}
    assert answer(routes[Code.PULL_MESSAGE]).code == ResponseCode.SUCCESS
    busy = answer(routes[Code.SEND_MESSAGE])
    assert busy.code == ResponseCode.SYSTEM_BUSY
    assert (busy.remark or "").startswith("[REJECTREQUEST]system busy")


def test_the_codes_are_those_of_a_slave() -> None:
    codes = {
        Code.SEND_MESSAGE_V2: ResponseCode.SYSTEM_BUSY,
        Code.CONSUMER_SEND_MSG_BACK: ResponseCode.SYSTEM_ERROR,
        Code.INVOKE_BROKER_TO_RESET_OFFSET: ResponseCode.SYSTEM_ERROR,
        Code.END_TRANSACTION: ResponseCode.SLAVE_NOT_AVAILABLE,
        Code.RECALL_MESSAGE: ResponseCode.SLAVE_NOT_AVAILABLE,
        Code.POP_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    }
    assert {code: REFUSED[code][0] for code in codes} == codes


def test_between_two_terms_everything_is_refused() -> None:
    (route,) = refusing_routes(served(Code.PULL_MESSAGE), "try again")
    assert answer(route) == Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark="try again")

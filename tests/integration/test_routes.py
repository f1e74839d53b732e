"""The tables of routes: complete, as reviewed, and finding what each request touches."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from rocketpost.access.words import EVERY, Action
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.command import Command
from rocketpost.namesrv.route_table import RouteTable
from rocketpost.server.access.control import AccessControl
from rocketpost.server.access.handlers import AccessHandlers
from rocketpost.server.clock import BrokerClock
from rocketpost.server.namesrv.handlers import NamesrvHandlers
from rocketpost.server.namesrv.kv_file import KvFile
from rocketpost.server.routes.access import OWN, Need, ResourceKind
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.routes.route import NO_HEADER, How, Route
from rocketpost.server.settings.namesrv import NamesrvConfig

from .route_requests import BODIES, NAMES
from .state.harness import broker, guarded_member

REVIEWED: Final = Path(__file__).with_name("routes.txt")

NOT_SERVED: Final = {
    # Requests that brokers make of clients.
    Code.CHECK_TRANSACTION_STATE,
    Code.NOTIFY_CONSUMER_IDS_CHANGED,
    Code.RESET_CONSUMER_CLIENT_OFFSET,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT,
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
}

LOGIN: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
}


def _read(root: Path, **settings: str) -> list[Route]:
    async def routes() -> list[Route]:
        async with broker(root, **settings) as server:
            return list(server._dispatcher.routes.values())

    return asyncio.run(routes())


def _besides(more: list[Route], others: list[Route]) -> list[Route]:
    known = {route.code for route in others}
    return [route for route in more if route.code not in known]


@pytest.fixture(scope="module")
def of_broker(tmp_path_factory: pytest.TempPathFactory) -> list[Route]:
    """The routes of a broker."""
    return _read(tmp_path_factory.mktemp("routes"))


@pytest.fixture(scope="module")
def of_acting(tmp_path_factory: pytest.TempPathFactory, of_broker: list[Route]) -> list[Route]:
    """The routes that a broker has only in a group with acting masters."""
    settings = {"enableSlaveActingMaster": "true"}
    return _besides(_read(tmp_path_factory.mktemp("acting"), **settings), of_broker)


@pytest.fixture(scope="module")
def of_member(tmp_path_factory: pytest.TempPathFactory, of_broker: list[Route]) -> list[Route]:
    """The routes that a broker has only as a member of a group that elects its leader."""
    root = tmp_path_factory.mktemp("member")
    return _besides(_read(root, **LOGIN, **guarded_member(root)), of_broker)


@pytest.fixture(scope="module")
def of_name_server() -> list[Route]:
    """The routes of a name server."""
    handlers = NamesrvHandlers(
        config=NamesrvConfig(),
        table=RouteTable(),
        kv=KvFile(None),
        clock=BrokerClock(),
        on_registered=lambda _: None,
        on_config=lambda: None,
    )
    control = AccessControl.off()
    access = AccessHandlers(table=control.table, gate=None, audit=control.audit, save=_saved)
    return [*handlers.routes(), *access.routes()]


async def _saved() -> None:
    """There is no file."""


@pytest.fixture(scope="module")
def routes(
    of_broker: list[Route],
    of_acting: list[Route],
    of_member: list[Route],
    of_name_server: list[Route],
) -> list[Route]:
    """The routes of all, each code once: brokers and name servers have users and rules."""
    return of_broker + of_acting + of_member + _besides(of_name_server, of_broker)


def _line(route: Route) -> str:
    header = "-" if route.header is NO_HEADER else route.header.__name__
    how = f"{route.how.value}:{route.pool.name}" if _may_wait(route) else route.how.value
    handler = route.handler.__qualname__
    return (
        f"{route.code:<7}{route.code.name:<42}{header:<21} {how:<18}{handler:<46}{route.access}\n"
    )


def _may_wait(route: Route) -> bool:
    return route.how in (How.WAITING, How.EITHER)


def test_the_tables_are_those_that_were_reviewed(
    of_broker: list[Route],
    of_acting: list[Route],
    of_member: list[Route],
    of_name_server: list[Route],
) -> None:
    """To change a table on purpose, delete the file, run this test and review the difference."""
    text = "".join(
        f"# {title}\n" + "".join(_line(route) for route in sorted(table))
        for title, table in (
            ("broker", of_broker),
            ("broker of a group with acting masters, besides", of_acting),
            ("broker of a group that elects its leader, besides", of_member),
            ("name server", of_name_server),
        )
    )
    if not REVIEWED.exists():
        REVIEWED.write_text(text)
        pytest.fail(f"{REVIEWED.name} was missing; it is written now and wants a review")
    assert text.splitlines() == REVIEWED.read_text().splitlines()


def test_every_request_code_is_served_or_listed_as_not_served(routes: list[Route]) -> None:
    served = [route.code for route in routes]
    assert len(set(served)) == len(served)
    assert set(served) | NOT_SERVED == set(Code)
    assert not set(served) & NOT_SERVED


def test_every_route_has_a_header_type_and_an_access_rule_that_fits_it(
    routes: list[Route],
) -> None:
    for route in routes:
        assert route.access.rules, route
        if route.header is NO_HEADER:
            assert not [rule for rule in route.access.rules if rule.fields], route
            continue
        assert issubclass(route.header, msgspec.Struct)
        for rule in route.access.rules:
            for field in rule.fields:
                assert hasattr(route.header, field), (route.code, field)


def test_every_handler_is_what_its_route_says(routes: list[Route]) -> None:
    for route in routes:
        # A handler may hand on the steps of another, so its annotation tells, not its body.
        returned = str(inspect.signature(route.handler).return_annotation)
        is_generator = returned.startswith(("Steps[", "Generator["))
        is_coroutine = inspect.iscoroutinefunction(route.handler)
        assert is_generator == (route.how is How.SLICED), route
        assert is_coroutine == (route.how is How.WAITING), route
        assert (route.later is not None) == (route.how is How.EITHER), route
        assert _may_wait(route) or route.pool is PoolKind.ADMIN, route


def _needs(route: Route, **fields: str) -> list[Need]:
    body = msgspec.json.encode(BODIES[route.code]) if route.code in BODIES else b""
    command = Command(route.code, text_fields=NAMES | fields, body=body)
    header: Any = None if route.header is NO_HEADER else command.read(route.header)
    return route.access.needs(command, header)


def test_every_rule_finds_what_a_request_names(routes: list[Route]) -> None:
    """Each name that a request can carry is one of these, so a rule that misses it is noticed."""
    known = {
        ResourceKind.TOPIC: {"T", "U", EVERY},
        ResourceKind.GROUP: {"G", "S", "C", "F1", "F2", EVERY},
        ResourceKind.CLUSTER: {"c", OWN},
        ResourceKind.MESSAGE: {"123"},
    }
    for route in routes:
        needs = _needs(route)
        text = str(route.access)
        assert needs or route.access.may_need_nothing, route
        for resource in ResourceKind:
            is_named = resource.value in text
            found = {need.name for need in needs if need.resource is resource}
            assert bool(found) == is_named, (route.code, needs, text)
            assert found <= known[resource], (route.code, needs)
            if f"{resource.value}(" in text or "body" in text:
                assert EVERY not in found, (route.code, needs)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.SEND_MESSAGE, "Topic:T Pub"),
        (Code.SEND_MESSAGE_V2, "Topic:T Pub"),
        (Code.PULL_MESSAGE, "Topic:T Sub, Group:G Sub"),
        (Code.LITE_PULL_MESSAGE, "Topic:T Sub, Group:G Sub"),
        (Code.POP_MESSAGE, "Topic:T Sub, Group:G Sub"),
        (Code.BATCH_ACK_MESSAGE, "Topic:T Sub, Group:G Sub"),
        (Code.HEART_BEAT, "Group:G Sub, Topic:T Sub"),
        (Code.LOCK_BATCH_MQ, "Group:G Sub, Topic:T Sub"),
        (Code.UPDATE_CONSUMER_OFFSET, "Topic:T Sub|Update, Group:G Sub|Update"),
        (Code.CLONE_GROUP_OFFSET, "Topic:T Update, Group:G Update, Group:S Get"),
        (
            Code.QUERY_CORRECTION_OFFSET,
            "Topic:T Get, Group:C Get, Group:F1 Get, Group:F2 Get",
        ),
        (Code.GET_CONSUME_STATS, "Group:G Get, Topic:T Get, Topic:U Get"),
        (Code.SET_MESSAGE_REQUEST_MODE, "Topic:T Sub, Group:G Update"),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, "Group:G Create"),
        (Code.VIEW_MESSAGE_BY_ID, "Message:123 Get"),
        (Code.END_TRANSACTION, "Message:123 Pub"),
        (Code.CONSUME_MESSAGE_DIRECTLY, "Group:G Sub, Message:123 Sub"),
        (Code.UPDATE_BROKER_CONFIG, "Cluster: Update"),
        (Code.GET_ALL_TOPIC_CONFIG, "Topic:* List"),
        (Code.REGISTER_BROKER, "Cluster:c Update"),
        (Code.GET_ROUTEINFO_BY_TOPIC, "Topic:T Pub|Sub|Get"),
    ],
)
def test_a_request_needs_these_rights(routes: list[Route], code: Code, expected: str) -> None:
    (route,) = [route for route in routes if route.code == code]
    assert ", ".join(map(_text, _needs(route))) == expected


def test_retry_topics_count_as_their_group(routes: list[Route]) -> None:
    by_code = {route.code: route for route in routes}
    retry = {"topic": "%RETRY%G", "b": "%RETRY%G"}
    sub = [Need(ResourceKind.GROUP, "G", (Action.SUB,))]
    assert _needs(by_code[Code.SEND_MESSAGE_V2], **retry) == sub
    assert _needs(by_code[Code.PULL_MESSAGE], **retry) == sub
    assert _needs(by_code[Code.ACK_MESSAGE], **retry) == sub
    route = _needs(by_code[Code.GET_ROUTEINFO_BY_TOPIC], **retry)
    assert route == [Need(ResourceKind.GROUP, "G", (Action.SUB, Action.GET))]


def _text(need: Need) -> str:
    actions = "|".join(action.value for action in need.actions)
    return f"{need.resource.value}:{need.name} {actions}"

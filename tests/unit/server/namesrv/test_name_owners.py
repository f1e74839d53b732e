"""Owners of broker names: the first user, until its last broker is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketpost.access.users import User
from rocketpost.access.words import UserType
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.faults import NoPermission
from rocketpost.server.access.gate import Gate
from rocketpost.server.namesrv.name_owners import NameOwners
from rocketpost.server.routes.access import UPDATE, of_cluster
from rocketpost.server.routes.route import NO_HEADER, Reply, plain


class World:
    """A name server's table of brokers, and requests of users."""

    def __init__(self) -> None:
        self.brokers: dict[str, dict[int, str]] = {}
        owners = NameOwners(cast(Gate, self), lambda cluster, name: self.brokers.get(name, {}))
        access = of_cluster(UPDATE)
        routes = [
            plain(Code.REGISTER_BROKER, NO_HEADER, access, cast(Any, self._register)),
            plain(Code.UNREGISTER_BROKER, NO_HEADER, access, cast(Any, self._unregister)),
            plain(Code.GET_BROKER_CLUSTER_INFO, NO_HEADER, access, cast(Any, self._register)),
        ]
        self._routes = {route.code: route for route in owners.guard(routes)}
        assert self._routes[Code.GET_BROKER_CLUSTER_INFO].handler == self._register

    def user_of(self, command: Any) -> User | None:
        return cast(User | None, command)

    def _register(self, _: object, command: object, header: Any) -> Reply:
        self.brokers.setdefault(header.broker_name, {})[header.broker_id] = "address"
        return Reply()

    def _unregister(self, _: object, command: object, header: Any) -> Reply:
        self.brokers.get(header.broker_name, {}).pop(header.broker_id, None)
        return Reply()

    def claim(self, user: User | None, code: Code, name: str = "a", broker_id: int = 0) -> None:
        header = SimpleNamespace(cluster_name="C", broker_name=name, broker_id=broker_id)
        self._routes[code].handler(None, user, header)


OURS = User("ours", "s")
THEIRS = User("theirs", "s")
ROOT = User("root", "s", UserType.SUPER)


def test_a_name_belongs_to_its_first_user() -> None:
    world = World()
    world.claim(OURS, Code.REGISTER_BROKER)
    world.claim(OURS, Code.REGISTER_BROKER, broker_id=1)
    for code in (Code.REGISTER_BROKER, Code.UNREGISTER_BROKER):
        with pytest.raises(NoPermission, match="belongs to the user ours, not to theirs"):
            world.claim(THEIRS, code, broker_id=2)
    assert sorted(world.brokers["a"]) == [0, 1]
    world.claim(THEIRS, Code.REGISTER_BROKER, name="b")


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_name_is_free_when_its_last_broker_is_gone(is_silent: bool) -> None:
    world = World()
    world.claim(OURS, Code.REGISTER_BROKER)
    if is_silent:
        world.brokers.clear()  # it was removed for its silence
    else:
        world.claim(OURS, Code.UNREGISTER_BROKER)
    world.claim(THEIRS, Code.REGISTER_BROKER)
    with pytest.raises(NoPermission):
        world.claim(OURS, Code.REGISTER_BROKER)


def test_super_users_and_codes_without_login_are_not_bound() -> None:
    world = World()
    world.claim(OURS, Code.REGISTER_BROKER)
    world.claim(ROOT, Code.REGISTER_BROKER, broker_id=1)
    world.claim(None, Code.REGISTER_BROKER, broker_id=2)
    assert sorted(world.brokers["a"]) == [0, 1, 2]
    with pytest.raises(NoPermission):
        world.claim(THEIRS, Code.REGISTER_BROKER, broker_id=3)

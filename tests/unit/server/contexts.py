"""Contexts for features under test: what a test does not give is missing."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from rocketpost.server.access.control import AccessControl
from rocketpost.server.context import LeaderContext
from rocketpost.server.feature import Feature
from rocketpost.server.peers import Peers
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.live_config import LiveConfig
from rocketpost.server.tables.broker_tables import Identity, Tables
from rocketpost.server.tables.persistence import Persistence
from rocketpost.store.config import StoreConfig
from rocketpost.testing.clock import FakeClock
from rocketpost.transport.turns import Turns


class PutWriter(NamedTuple):
    """A writer that stores by means of a function of the test."""

    put: Any

    def commit(self) -> None:
        """Do nothing: what is put is stored."""


def some_tables(**given: Any) -> Tables:
    """Return tables, of which a test gives those that it needs."""
    missing: dict[str, Any] = dict.fromkeys(Tables._fields)
    return Tables(**(missing | given))


def broker_context(*, put: Any = None, **given: Any) -> LeaderContext:
    """Return a context, of which a test gives the fields that it needs.

    Args:
        put: Stores messages, if anything does.
        given: Fields of the context.
    """
    clock = given.pop("clock", None) or FakeClock()
    broker = given.pop("broker", BrokerConfig())
    store = given.pop("store_settings", StoreConfig(root="."))
    defaults: dict[str, Any] = {
        "identity": Identity("C", "b", "10.0.0.1", 10911),
        "clock": clock,
        "settings": LiveConfig(broker, store, clock=clock),
        "store": None,
        "tables": some_tables(),
        "persistence": Persistence([]),
        "repairs": (),
        "membership": None,
        "locks": None,
        "filters": None,
        "stats": None,
        "turns": Turns(),
        "name_servers": list,
        "peers": Peers(),
        "access": AccessControl.off(),
        "writer": PutWriter(put),
        "sends": None,
        "dedup": None,
        "halves": None,
        "timed": None,
        "timer_rules": None,
    }
    return LeaderContext(**(defaults | given))


def open_now(feature: Feature) -> None:
    """Open a feature that waits for nothing when it opens."""
    opening = feature.open()
    with contextlib.suppress(StopIteration):
        opening.send(None)
        raise AssertionError("it waits for something")

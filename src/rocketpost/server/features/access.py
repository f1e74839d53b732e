"""Users and rules: their requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rocketpost.server.access.handlers import AccessHandlers
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature, FeatureSet
from rocketpost.server.metrics.exposition import Family, Sample, counter, label_text
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.routes.route import Route
from rocketpost.server.secure.exposure import find_exposure
from rocketpost.server.tables.persistence import Owner

logger = logging.getLogger(__name__)


class AccessFeature(Feature):
    """Serves requests about users and rules. Owned by the loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._access = context.access
        self._handlers = AccessHandlers(
            table=context.tables.access,
            gate=context.access.gate,
            audit=context.access.audit,
            save=partial(context.persistence.save, Owner.ACCESS),
        )

    def routes(self) -> Sequence[Route]:
        """Return the routes of users and rules."""
        return self._handlers.routes()

    def metrics(self) -> Iterable[Family]:
        """Return the numbers of refused requests."""
        gate = self._access.gate
        counts = (0, 0) if gate is None else (gate.failures.total, gate.denied_count)
        yield counter(
            "rocketpost_access_refused_total",
            "Requests refused by access control.",
            [
                Sample(label_text({"reason": reason}), count)
                for reason, count in zip(("login", "right"), counts, strict=True)
            ],
        )

    def runtime_values(self) -> dict[str, str]:
        """Return whether access control is on, and the numbers of refused requests."""
        gate = self._access.gate
        if gate is None:
            return {"accessControl": "off", "exposure": _exposure(self._context)}
        return {
            "accessControl": "on" if gate.authorises else "authentication only",
            "failedLogins": str(gate.failures.total),
            "deniedRequests": str(gate.denied_count),
        }


def guard(
    dispatcher: Dispatcher, context: BrokerContext, features: Callable[[], FeatureSet]
) -> None:
    """Check every request by the gate, and end held requests when their rights are revoked.

    Args:
        dispatcher: Serves the requests.
        context: The state of the broker.
        features: Returns the features of the current term.
    """
    gate = dispatcher.gate = context.access.gate
    if exposure := _exposure(context):
        logger.warning("broker is open to everybody: reason=%s", exposure)

    def note_change() -> None:
        context.persistence.note_change(owner=Owner.ACCESS)
        if gate is not None:
            features().access_changed(gate)

    context.tables.access.on_change = note_change


def _exposure(context: BrokerContext) -> str:
    return find_exposure(
        context.broker_config.bind_address,
        authenticates=context.access.gate is not None,
        rules=context.peers.log_ports.rules,
    )

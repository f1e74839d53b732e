"""Look things up in a snapshot: a thing is missing only if all servers can tell. Pure."""

from __future__ import annotations

from rocketpost.console.collect.snapshot import BrokerView, GroupView, Snapshot, TopicView
from rocketpost.console.visit import NotFoundError
from rocketpost.errors import RocketpostError


def find_topic(snapshot: Snapshot, name: str) -> TopicView:
    """Return a topic.

    Raises:
        NotFoundError: No broker has it.
        RocketpostError: The servers did not answer, so it is unknown whether it exists.
    """
    found = snapshot.topics.get(name)
    if found is None:
        raise _missing(snapshot, name)
    return found


def find_group(snapshot: Snapshot, name: str) -> GroupView:
    """Return a consumer group.

    Raises:
        NotFoundError: No broker has it.
        RocketpostError: The servers did not answer, so it is unknown whether it exists.
    """
    found = snapshot.groups.get(name)
    if found is None:
        raise _missing(snapshot, name)
    return found


def find_servers(snapshot: Snapshot, name: str) -> list[BrokerView]:
    """Return the servers of a broker name.

    Raises:
        NotFoundError: No name server knows it.
        RocketpostError: No name server answered.
    """
    found = [each for each in snapshot.brokers if each.name == name]
    if not found:
        _require_name_servers(snapshot)
        raise NotFoundError(name)
    return found


def find_master(snapshot: Snapshot, name: str) -> BrokerView:
    """Return the master of a broker name.

    Raises:
        NotFoundError: There is none.
        RocketpostError: No name server answered.
    """
    for each in masters(snapshot):
        if each.name == name:
            return each
    raise NotFoundError(name)


def masters(snapshot: Snapshot) -> list[BrokerView]:
    """Return the masters that name servers list, by name.

    Raises:
        RocketpostError: No name server answered.
    """
    _require_name_servers(snapshot)
    return [each for each in snapshot.brokers if each.is_master and each.cluster]


def _require_name_servers(snapshot: Snapshot) -> None:
    if not snapshot.is_known:
        raise RocketpostError(snapshot.problem or "the servers have not answered yet")


def _missing(snapshot: Snapshot, name: str) -> Exception:
    """Return the error for something that no answer of a broker has."""
    _require_name_servers(snapshot)
    silent = sorted({each.name for each in snapshot.silent})
    if silent:
        return RocketpostError(
            f"no broker that answers has {name}; these do not answer: {', '.join(silent)}"
        )
    return NotFoundError(name)

from __future__ import annotations

from rocketpost.server.replication.master_presence import MasterPresence


def test_listeners_learn_of_each_return() -> None:
    presence = MasterPresence()
    returns: list[bool] = []
    presence.on_return.append(lambda: returns.append(presence.is_alive))
    assert not presence.is_alive
    presence.set_alive(True)
    presence.set_alive(True)
    assert returns == [True]
    presence.set_alive(False)
    assert not presence.is_alive
    presence.set_alive(True)
    assert returns == [True, True]

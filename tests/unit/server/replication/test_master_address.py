from __future__ import annotations

from rocketpost.server.replication.master_address import MasterAddress


async def test_it_is_unknown_until_somebody_tells() -> None:
    master = MasterAddress()
    assert (master.remoting, master.ha) == ("", "")
    heard: list[str] = []
    master.on_change.append(lambda: heard.append(master.ha))
    master.learn(remoting="10.0.0.1:10911", ha="10.0.0.2:10912")
    master.learn(remoting="10.0.0.1:10911", ha="10.0.0.2:10912")
    assert (master.remoting, master.ha) == ("10.0.0.1:10911", "10.0.0.2:10912")
    assert heard == ["10.0.0.2:10912"]


async def test_a_known_address_stays_when_nobody_confirms_it() -> None:
    master = MasterAddress()
    master.learn(remoting="10.0.0.1:10911", ha="10.0.0.2:10912")
    master.learn(remoting="", ha="")
    assert (master.remoting, master.ha) == ("10.0.0.1:10911", "10.0.0.2:10912")


async def test_haMasterAddress_is_used_always() -> None:
    master = MasterAddress(fixed_ha="10.0.0.9:1")
    assert master.ha == "10.0.0.9:1"
    master.learn(remoting="10.0.0.1:10911", ha="10.0.0.2:10912")
    assert (master.remoting, master.ha) == ("10.0.0.1:10911", "10.0.0.9:1")


async def test_a_wait_ends_with_a_change_or_with_its_time() -> None:
    master = MasterAddress()
    await master.wait_changed(0.0)
    master.learn(remoting="a:1", ha="a:2")
    await master.wait_changed(3600)
    await master.wait_changed(0.0)
    master.hurry()
    await master.wait_changed(3600)

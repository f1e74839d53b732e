"""The sample files of groups work as they are; here on free ports and in other directories."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.record import decode_records
from rocketpost.server.settings.broker import read_properties
from rocketpost.testing import free_port

from .replicas import leader, log_of, name_server, until_copied, until_following
from .settings.harness import Peer, broker, until

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize(
    ("folder", "slaves"), [("2m-noslave", 0), ("2m-2s-async", 2), ("2m-2s-sync", 2)]
)
async def test_the_samples_of_a_folder(tmp_path: Path, folder: str, slaves: int) -> None:
    files = sorted((CONF / folder).glob("*.properties"))
    assert len(files) == 2 + slaves
    assert len({read_properties(file)["listenPort"] for file in files}) == len(files)
    assert len({read_properties(file)["storePathRootDir"] for file in files}) == len(files)
    async with contextlib.AsyncExitStack() as stack:
        names = await stack.enter_async_context(name_server(tmp_path))
        peers: dict[str, Peer] = {}
        for file in files:
            values: dict[str, object] = dict(read_properties(file))
            del values["listenPort"], values["storePathRootDir"]
            one = broker(tmp_path / file.stem, namesrvAddr=names, **values)
            peers[file.stem] = await stack.enter_async_context(one)
        for group in ("broker-a", "broker-b"):
            master, slave = peers[group], peers.get(f"{group}-s")
            if slave is not None:
                await until_following(slave)
                await until_copied(master, slave)
            answer = await master.send("T", b"x")
            assert answer.code == ResponseCode.SUCCESS
            if slave is not None:
                if folder == "2m-2s-sync":
                    copied = leader(master).slaves.acks.position_of(1)
                    assert copied == len(log_of(master.server))
                await until_copied(master, slave)
                assert log_of(slave.server) == log_of(master.server)
                await until_readable(slave)


async def test_the_samples_of_a_group_that_elects_its_leader(tmp_path: Path) -> None:
    files = sorted((CONF / "dledger").glob("*.conf"))
    members = [read_properties(file) for file in files]
    assert [values["dLegerSelfId"] for values in members] == ["n0", "n1", "n2"]
    assert len({values["listenPort"] for values in members}) == 3
    assert len({values["storePathRootDir"] for values in members}) == 3
    peers = ";".join(f"n{number}-127.0.0.1:{free_port()}" for number in range(3))
    async with contextlib.AsyncExitStack() as stack:
        names = await stack.enter_async_context(name_server(tmp_path))
        started: list[Peer] = []
        for file, given in zip(files, members, strict=True):
            values: dict[str, object] = {**given, "dLegerPeers": peers, "namesrvAddr": names}
            del values["listenPort"], values["storePathRootDir"]
            started.append(await stack.enter_async_context(broker(tmp_path / file.stem, **values)))
        for peer in started:  # one is the leader, and the others pass it on
            answer = await peer.send("T", b"x")
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            await until_readable(peer)


async def until_readable(slave: Peer) -> None:
    """Wait until a consumer can read the message at the slave, which must know its topic first."""

    async def is_there() -> bool:
        answer = await slave.pull("T")
        if answer.code != ResponseCode.SUCCESS:
            return False
        return {bytes(each.body) for each in decode_records(answer.body)} == {b"x"}

    await until(is_there)

"""Attacks on RocketMQ, replayed by a stranger, by a user without rights and by a super user."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import pytest

from rocketpost.client.credentials import Credentials
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig

from .state.harness import Peer
from .test_access import NORM, ON, ROOT, Guarded, guarded

SENDERS: Final = [None, NORM, ROOT]
NAMES: Final = ["../../../../evil", "a/b", "a\\b", "x.y", "n" * 256, "%RETRY%../x"]
_watched: list[list[str]] = []


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _watched and event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
        _watched[-1].append(event)


sys.addaudithook(_audit)


@pytest.fixture
def spawned() -> Any:
    """The processes that were started during a test."""
    _watched.append([])
    yield _watched[-1]
    _watched.pop()


@pytest.mark.parametrize("keys", SENDERS)
async def test_cve_2019_17572_names_outside_the_store(
    keys: Credentials | None, tmp_path: Path
) -> None:
    async with guarded(tmp_path / "store") as place:
        await place.user(NORM)
        await place.rule(NORM, "*", "All")
        before = names_below(tmp_path)
        for name in NAMES:
            gate = place.server._dispatcher.gate
            assert gate is not None
            gate.failures._records.clear()
            assert (await place.send(keys, name)).code != ResponseCode.SUCCESS
            group = b'{"groupName":"%s"}' % name.replace("\\", "\\\\").encode()
            for code, body, fields in (
                (Code.UPDATE_AND_CREATE_TOPIC, b"", {"topic": name, "readQueueNums": 1,
                 "writeQueueNums": 1, "perm": 6, "defaultTopic": "TBW102"}),
                (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group, {}),
            ):  # fmt: skip
                answer = await place.ask(keys, code, body, **fields)
                assert answer.code != ResponseCode.SUCCESS, (code, name)
        assert names_below(tmp_path) <= before | {"audit.log"}
    assert not (tmp_path / "evil").exists()


def names_below(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_dir() or path.name == "audit.log"}


@pytest.mark.parametrize("keys", SENDERS)
async def test_cve_2023_33246_commands_in_settings(
    keys: Credentials | None, tmp_path: Path, spawned: list[str]
) -> None:
    marker = tmp_path / "marker"
    async with guarded(tmp_path / "store") as place:
        await place.user(NORM)
        before = await settings(place)
        for text in (
            f"filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch {marker};\n",
            f"namesrvAddr=127.0.0.1:1;touch {marker}\n",
            f"brokerConfigPath={marker}\n",
            "authenticationEnabled=false\n",
            "initAuthenticationUser={}\n",
            f"auth\\u0053ecretKeyFile={marker}\n",
        ):
            answer = await place.ask(keys, Code.UPDATE_BROKER_CONFIG, text.encode())
            assert answer.code == ResponseCode.NO_PERMISSION, text
        assert await settings(place) == before
    assert not marker.exists()
    assert spawned == []


async def settings(place: Guarded) -> bytes:
    return bytes((await place.ok(ROOT, Code.GET_BROKER_CONFIG)).body)


@pytest.mark.parametrize("keys", SENDERS)
async def test_cve_2023_37582_paths_of_the_name_server(
    keys: Credentials | None, tmp_path: Path, spawned: list[str]
) -> None:
    marker = tmp_path / "marker"
    server = NameServer(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=None,
            auth_path=str(tmp_path / "ns"),
            authentication_enabled=True,
            authorization_enabled=True,
            init_user=ON["initAuthenticationUser"],
        )
    )
    await server.start()
    try:
        peer = await Peer().connect(server.port)
        for text in (
            f"configStorePath={marker}\nproductEnvName=x\\ny\n",
            f"config\\u0053torePath={marker}\n",
            f"  configStorePath : {marker}\n",
            f"conf\\\nigStorePath={marker}\n",
            f"kvConfigPath={marker}\n",
            f"rocketmqHome={marker}\n",
            f"authConfigPath={marker}\n",
            "configBlackList=x\n",
        ):
            body = text.encode()
            fields = {} if keys is None else keys.sign({}, (body,))
            answer = await peer.connection.request(
                Code.UPDATE_NAMESRV_CONFIG, fields=fields, body=body, timeout=20
            )
            refused = (ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER)
            assert answer.code in refused, text
        peer.connection.close()
    finally:
        await server.stop()
    assert not marker.exists()
    assert spawned == []


@pytest.mark.parametrize("keys", SENDERS)
async def test_cve_2024_23321_old_access_control(keys: Credentials | None, tmp_path: Path) -> None:
    async with guarded(tmp_path) as place:
        await place.user(NORM)
        for code in range(50, 55):
            answer = await place.ask(
                keys, code, accessKey="evil-user", secretKey="evil-secret", admin="true"
            )
            expected = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert answer.code == (ResponseCode.NO_PERMISSION if keys is None else expected)
            assert b"secret" not in answer.body
        assert place.server._context.tables.access.user("evil-user") is None

from __future__ import annotations

import msgspec
import pytest

from rocketpost.codec.bodies.stats import decode_key_values
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.kernel import FORM
from rocketpost.server.handlers import admin as admin_module
from rocketpost.settings import parse_properties

from .fakes import FakeQueue, json_of
from .world import SampleConfig, World


async def test_a_setting_is_changed_and_saved(world: World) -> None:
    seen: list[SampleConfig] = []
    world.config.watch(SampleConfig, seen.append)
    response = await world.call(Code.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")
    assert response.code == 0
    assert [config.permission for config in seen] == [4]
    assert world.saves.count == 1
    shown = await world.call(Code.GET_BROKER_CONFIG)
    assert parse_properties(shown.body.decode())["brokerPermission"] == "4"
    assert msgspec.json.decode(shown.fields["version"])["counter"] == 1


@pytest.mark.parametrize(
    ("body", "code", "named"),
    [
        # What made CVE-2023-33246 and CVE-2023-37582: a path or a command as a setting.
        (b"rocketmqHome=-c {touch,/tmp/x}|sh", ResponseCode.NO_PERMISSION, "rocketmqHome"),
        (b"filterServerNums=1\nrocketmqHome=$(id)", ResponseCode.NO_PERMISSION, "filterServer"),
        (b"brokerConfigPath=/etc/passwd", ResponseCode.NO_PERMISSION, "brokerConfigPath"),
        (b"storePathRootDir=/tmp", ResponseCode.NO_PERMISSION, "storePathRootDir"),
        (b"namesrvAddr=evil:9876", ResponseCode.NO_PERMISSION, "namesrvAddr"),
        (b"traceOn=false\nnoSuchKey=1", ResponseCode.NO_PERMISSION, "noSuchKey"),
        (b"traceOn=false\nbrokerPermission=9", ResponseCode.INVALID_PARAMETER, "brokerPermission"),
        (b"traceOn=perhaps", ResponseCode.INVALID_PARAMETER, "traceOn"),
        (b"traceOn=\\uXYZ!", ResponseCode.INVALID_PARAMETER, "escape"),
        (b"traceOn=\xff", ResponseCode.INVALID_PARAMETER, "read"),
        (b"", ResponseCode.INVALID_PARAMETER, "no setting"),
        (b"traceOn=" + b" " * 70_000, ResponseCode.INVALID_PARAMETER, "bytes"),
    ],
)
async def test_hostile_settings_change_nothing(
    world: World, body: bytes, code: int, named: str
) -> None:
    before = world.config.properties()
    response = await world.call(Code.UPDATE_BROKER_CONFIG, body=body)
    assert response.code == code
    assert named in (response.remark or "")
    assert world.config.properties() == before
    assert (world.config.revision, world.saves.count) == (0, 0)


async def test_runtime_information_is_all_numbers_that_tools_parse(world: World) -> None:
    world.stats.count_stored([FakeMessage()])
    world.clock.advance(90_061_000)
    values = decode_key_values((await world.call(Code.GET_BROKER_RUNTIME_INFO)).body)
    assert values["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert values["msgPutTotalTodayNow"] == values["putMessageTimesTotal"] == "1"
    assert (values["commitLogMinOffset"], values["commitLogMaxOffset"]) == ("0", "5000")
    assert values["dispatchBehindBytes"] == "500"
    assert values["remainHowManyDataToFlush"] == "1000 B"
    assert values["earliestMessageTimeStamp"] == "77"
    assert values["heldPulls"] == "3"
    assert values["kernel"] == FORM.word
    assert 0 <= float(values["commitLogDiskRatio"]) <= 1
    for key in ("putTps", "getTransferredTps", "getTotalTps", "getFoundTps", "getMissTps"):
        assert len([float(rate) for rate in values[key].split(" ")]) == 3
    for key in ("sendThreadPoolQueueSize", "pageCacheLockTimeMills", "timerReadBehind"):
        assert int(values[key]) == 0


class FakeMessage:
    topic = "T"
    message_count = 1
    record_bytes = 100


async def test_an_unreadable_disk_is_no_reason_to_fail(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(path: str) -> None:
        raise OSError("gone")

    monkeypatch.setattr(admin_module.shutil, "disk_usage", unreadable)
    values = decode_key_values((await world.call(Code.GET_BROKER_RUNTIME_INFO)).body)
    assert values["commitLogDiskRatio"] == "-1"


async def test_statistics_by_name(world: World) -> None:
    world.stats.count_stored([FakeMessage()])
    fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    body = json_of(await world.call(Code.VIEW_BROKER_STATS_DATA, fields))
    assert isinstance(body, dict)
    assert body["statsDay"]["sum"] == 1
    unknown = await world.call(Code.VIEW_BROKER_STATS_DATA, fields | {"statsKey": "U"})
    assert unknown.code == ResponseCode.SYSTEM_ERROR


async def test_cleaning_is_done_now(world: World) -> None:
    assert (await world.call(Code.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
    assert (await world.call(Code.DELETE_EXPIRED_COMMITLOG)).code == 0
    assert world.cleaned == 2


async def test_queues_of_topics_that_are_gone_go_too(world: World) -> None:
    world.add_topic("T")
    world.store.table["T", 0] = FakeQueue("T", [1])
    world.store.table["Gone", 0] = FakeQueue("Gone", [1])
    assert (await world.call(Code.CLEAN_UNUSED_TOPIC)).code == 0
    assert world.store.deleted == ["Gone"]
    assert list(world.store.table) == [("T", 0)]

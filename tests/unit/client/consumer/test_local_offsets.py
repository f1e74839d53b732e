from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.client.consumer.local_offsets import LocalOffsets
from rocketpost.errors import ClientError
from rocketpost.model.route import MessageQueue

Q0, Q1 = MessageQueue("a", 0, "T"), MessageQueue("a", 1, "T")

# As Java's client writes it: indented, objects as keys.
JAVA = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"a",
\t\t\t"queueId":1,
\t\t\t"topic":"T"
\t\t}:7
\t}
}"""


async def opened(directory: Path) -> LocalOffsets:
    offsets = LocalOffsets(str(directory), "192.0.2.1@DEFAULT", "G")
    await offsets.open()
    return offsets


async def test_offsets_are_found_again(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    assert await first.load(Q0) is None
    assert await first.store({Q0: 5}) == {Q0}
    assert await first.store({Q1: 6}) == {Q1}
    await first.close()
    second = await opened(tmp_path)
    assert (await second.load(Q0), await second.load(Q1)) == (5, 6)
    await second.close()
    path = tmp_path / "192.0.2.1@DEFAULT" / "G" / "offsets.json"
    assert path.read_bytes() == (
        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:5,'
        b'{"brokerName":"a","queueId":1,"topic":"T"}:6}}'
    )
    assert b'"queueId":1' not in path.with_name("offsets.json.bak").read_bytes()


async def test_a_file_of_java_is_read(tmp_path: Path) -> None:
    path = LocalOffsets(str(tmp_path), "c", "G").path
    path.parent.mkdir(parents=True)
    path.write_bytes(JAVA)
    offsets = LocalOffsets(str(tmp_path), "c", "G")
    await offsets.open()
    assert await offsets.load(Q1) == 7
    await offsets.close()


@pytest.mark.parametrize("torn", [b"", b"{\x00", JAVA[:40]])
async def test_a_torn_file_is_replaced_by_the_one_before(tmp_path: Path, torn: bytes) -> None:
    first = await opened(tmp_path)
    await first.store({Q0: 5})
    await first.store({Q0: 6})
    await first.close()
    first.path.write_bytes(torn)
    second = await opened(tmp_path)
    assert await second.load(Q0) == 5
    await second.close()


async def test_two_torn_files_are_an_error_and_leave_no_lock(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    await first.store({Q0: 5})
    await first.store({Q0: 6})
    await first.close()
    backup = first.path.with_name("offsets.json.bak")
    first.path.write_bytes(b"{")
    backup.write_bytes(b"{")
    with pytest.raises(ClientError, match="cannot be read"):
        await opened(tmp_path)
    first.path.unlink()
    backup.unlink()
    again = await opened(tmp_path)
    assert await again.load(Q0) is None
    await again.close()


async def test_two_consumers_do_not_share_a_file(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    with pytest.raises(ClientError, match="instance_name"):
        await opened(tmp_path)
    await first.close()


async def test_a_place_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ClientError, match="cannot use"):
        await opened(tmp_path / "file")


async def test_offsets_that_cannot_be_written_are_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = await opened(tmp_path)
    offsets.path.mkdir()
    assert await offsets.store({Q0: 5}) == set()
    assert "offsets not stored" in caplog.text
    await offsets.close()


def test_the_usual_place_is_in_the_home_directory() -> None:
    assert LocalOffsets(None, "c", "G").path == (
        Path.home() / ".rocketmq_offsets" / "c" / "G" / "offsets.json"
    )

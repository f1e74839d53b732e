"""Each side opens the store that the other one wrote, goes on writing, and hands it back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.peer import Event, Peer, named
from interop.servers import SMALL_STORE, Cluster, Maker
from rocketpost.codec import lenient_json
from rocketpost.codec.record import decode_records
from rocketpost.errors import ProtocolError
from rocketpost.model.names import OP_HALF_TOPIC

pytestmark = pytest.mark.interop

GROUP = "reader"
# A kill takes the ends of transactions that Apache's broker, or ours for commits, still gathers.
# The next owner would ask about them, and the client commits whatever it is asked about.
UNASKED = {"transactionTimeOut": "3600000"}
# Three files of the commit log are filled, so that the reader meets the blanks at their ends.
TINY_LOG = {**SMALL_STORE, "mappedFileSizeCommitLog": "65536", "maxMessageSize": "32768"}
# With these a broker takes no record for one that does not end with its checksum.
SIGNED = {"enabledAppendPropCRC": "true", "forceVerifyPropCRC": "true"}
SHAPES = {
    "default": UNASKED,
    "tiny": TINY_LOG | UNASKED,
    "signed": TINY_LOG | UNASKED | SIGNED,
}
IDENTITY = (
    "msgId", "offsetMsgId", "queueId", "queueOffset", "commitLogOffset", "storeSize",
    "storeTimestamp", "bornTimestamp", "tags", "keys", "bodySize", "bodyCrc",
)  # fmt: skip


@pytest.fixture(params=["first-apache", "first-rocketpost"])
def makers(request: pytest.FixtureRequest, target: Maker) -> tuple[Maker, Maker]:
    """The broker that writes first and its successor; for the yardstick both are Apache's."""
    if target == "apache":
        if request.param == "first-rocketpost":
            pytest.skip("the target is Apache's broker, there is no second maker")
        return "apache", "apache"
    return ("apache", "rocketpost") if request.param == "first-apache" else ("rocketpost", "apache")


@pytest.fixture(scope="module")
def reader(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with Peer("5.3", tmp_path_factory.mktemp("reader")) as running:
        yield running


def write(peer: Peer, cluster: Cluster, name: str) -> None:
    """Write what a store can hold: tags, keys, a batch, compression, transactions."""
    namesrv = cluster.namesrv
    common: dict[str, object] = {"namesrv": namesrv, "topic": "Orders"}
    peer.run("send", **common, body=name, count=20, tags="paid,open", keys=f"{name}-#,{name}")
    peer.run("send", **common, body=f"{name}-long", count=60, size=2000, compressOver=9000, queue=1)
    peer.run("batch", **common, body=f"{name}-batch", count=4, keys=f"{name}-batch")
    peer.run("send", **common, body=f"{name}-packed", size=20_000, queue=3)
    peer.run("transaction", **common, body=f"{name}-done", decision="COMMIT_MESSAGE")
    peer.run("transaction", **common, body=f"{name}-undone", decision="ROLLBACK_MESSAGE")
    peer.run("send", namesrv=namesrv, topic="Other", body=name, count=5)


def read(peer: Peer, namesrv: str, topic: str) -> list[tuple[object, ...]]:
    events: list[Event] = named(peer.run("pull", namesrv=namesrv, topic=topic), "message")
    return [tuple(event[key] for key in IDENTITY) for event in events]


def read_all(peer: Peer, namesrv: str) -> dict[str, list[tuple[object, ...]]]:
    return {topic: read(peer, namesrv, topic) for topic in ("Orders", "Other")}


def committed(peer: Peer, namesrv: str) -> dict[int, int]:
    events = peer.run("offsets", namesrv=namesrv, topic="Orders", group=GROUP)
    return {event["queueId"]: event["committed"] for event in events}


def find(peer: Peer, namesrv: str, key: str) -> int:
    return len(
        named(peer.run("query", namesrv=namesrv, topic="Orders", key=key, max=64), "message")
    )


def wait_for_offsets(cluster: Cluster, offsets: dict[int, int]) -> None:
    """Return once the offsets of the group are in the file: they are written now and then."""
    path = cluster.store / "config" / "consumerOffset.json"
    wanted = {str(queue): offset for queue, offset in offsets.items()}
    deadline = time.monotonic() + 60
    while _stored_offsets(path) != wanted:
        assert time.monotonic() < deadline, "the offsets were never stored"
        time.sleep(0.1)


def _stored_offsets(path: Path) -> object:
    try:
        return lenient_json.decode_any(path.read_bytes())["offsetTable"].get(f"Orders@{GROUP}")
    except (FileNotFoundError, ProtocolError):  # Apache's broker writes over it in place
        return None


@pytest.mark.parametrize("ending", ["stopped", "killed"])
@pytest.mark.parametrize(
    "shape", ["tiny", "signed", pytest.param("default", marks=pytest.mark.long)]
)
def test_a_store_goes_back_and_forth(
    reader: Peer, makers: tuple[Maker, Maker], tmp_path: Path, ending: str, shape: str
) -> None:
    first, second = makers
    cluster = Cluster(tmp_path, first, settings=SHAPES[shape])

    # After a crash Apache's broker drops index files younger than the checkpoint, and dispatches
    # again only from the file it recovers from: keys of earlier files cannot be found any more.
    keys_survive = ending == "stopped" or shape == "default"

    def end(offsets: dict[int, int]) -> None:
        if ending == "stopped":
            cluster.stop_broker()
        else:
            wait_for_offsets(cluster, offsets)
            cluster.kill_broker()

    with cluster:
        write(reader, cluster, "one")
        reader.run("pull", namesrv=cluster.namesrv, topic="Orders", group=GROUP, commit=1)
        written, offsets = read_all(reader, cluster.namesrv), committed(reader, cluster.namesrv)
        assert len(written["Orders"]) == 20 + 60 + 4 + 1 + 1
        end(offsets)

        cluster.start_broker(second)
        assert read_all(reader, cluster.namesrv) == written
        assert committed(reader, cluster.namesrv) == offsets
        if keys_survive:
            assert find(reader, cluster.namesrv, "one") == 20
            assert find(reader, cluster.namesrv, "one-batch") == 4
        write(reader, cluster, "two")
        more = read_all(reader, cluster.namesrv)
        assert len(more["Orders"]) == 2 * len(written["Orders"])
        # Nothing written before has moved.
        assert set(written["Orders"]) < set(more["Orders"])
        reader.run("pull", namesrv=cluster.namesrv, topic="Orders", group=GROUP, commit=1)
        offsets = committed(reader, cluster.namesrv)
        end(offsets)

        cluster.start_broker(first)
        assert read_all(reader, cluster.namesrv) == more
        assert committed(reader, cluster.namesrv) == offsets
        for name in ("one", "two") if keys_survive else ():
            assert find(reader, cluster.namesrv, name) == 20
        write(reader, cluster, "three")
        assert len(read(reader, cluster.namesrv, "Orders")) == 3 * len(written["Orders"])


def test_a_delayed_message_is_delivered_by_the_next_owner(
    reader: Peer, makers: tuple[Maker, Maker], tmp_path: Path
) -> None:
    first, second = makers
    with Cluster(tmp_path, first, settings=SMALL_STORE) as cluster:
        common: dict[str, object] = {"namesrv": cluster.namesrv, "topic": "Orders"}
        reader.run("send", **common, count=1, body="now")
        reader.run("send", **common, count=1, body="later", delayLevel=3, tags="A")  # 10 s
        cluster.stop_broker()
        cluster.start_broker(second)
        deadline = time.monotonic() + 60
        while len(found := read(reader, cluster.namesrv, "Orders")) < 2:
            assert time.monotonic() < deadline, "the delayed message never came"
            time.sleep(0.2)
        assert len(found) == 2


def wait_for_ops(store: Path, count: int) -> None:
    """Return once so many transactions are ended in the log; ends are gathered for seconds."""
    deadline = time.monotonic() + 60
    while True:
        log = b"".join(path.read_bytes() for path in sorted((store / "commitlog").glob("0*")))
        ops = [each for each in decode_records(log) if each.topic == OP_HALF_TOPIC]
        if sum(len(bytes(each.body).strip(b",").split(b",")) for each in ops) >= count:
            return
        assert time.monotonic() < deadline, "the ends were never stored"
        time.sleep(0.1)


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_pending_transaction_is_ended_by_the_next_owner(
    reader: Peer, makers: tuple[Maker, Maker], tmp_path: Path, ending: str
) -> None:
    first, second = makers
    with Cluster(tmp_path, first, settings=SMALL_STORE | UNASKED) as cluster:
        common: dict[str, object] = {"namesrv": cluster.namesrv, "topic": "Orders", "count": 1}
        for body, decision in (
            ("committed", "COMMIT_MESSAGE"),
            ("gone", "ROLLBACK_MESSAGE"),
            ("pending", "UNKNOW"),
        ):
            reader.run("transaction", **common, body=body, decision=decision)
        wait_for_ops(cluster.store, 2)
        cluster.stop_broker() if ending == "stopped" else cluster.kill_broker()

        cluster.settings = {
            # Apache's broker asks about what it has ended but not yet written down: up to twice the
            # interval at which it gathers ends, 3 seconds unless told.
            **SMALL_STORE, "transactionTimeOut": "5000", "transactionCheckInterval": "5000",
            "transactionOpBatchInterval": "100",
        }  # fmt: skip
        cluster.start_broker(second)
        # The next member of the group is asked about the one that is pending, and nothing else.
        events = reader.run(
            "transaction", **common, body="next", decision="COMMIT_MESSAGE",
            checked="COMMIT_MESSAGE", checks=1, linger=3000,
        )  # fmt: skip
        assert [event["body"] for event in named(events, "checked")] == ["pending-0"]
        found = named(reader.run("pull", **common), "message")
        assert sorted(event["body"] for event in found) == ["committed-0", "next-0", "pending-0"]

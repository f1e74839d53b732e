"""Makes ``tests/golden`` anew: real clients and a real broker talk, proxies listen.

Run as ``python -m interop.make_golden`` with ``tests`` on the module path. Each exchange is kept
once per peer, request code, variant and response code, so a second run gives the same set of names
with other times, ports and ids in them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from interop.capture import CapturedFrame, Exchange, Proxy, Recording
from interop.jvm import CLIENT_VERSIONS, RESOURCES
from interop.peer import Peer, PeerError, named
from interop.servers import Cluster
from rocketpost.testing.process import free_port

GOLDEN: Final = Path(__file__).parents[1] / "golden"
RELEASES: Final = {"5.3": "5.3.3", "4.9": "4.9.8"}
BODY_BYTES_MAX: Final = 20_000
# What the older client adds is small; the broker's long answers are the same for both.
BODY_BYTES_MAX_OLDER: Final = 2_000

MANIFEST_KEYS: Final = (
    "queueId", "queueOffset", "commitLogOffset", "storeSize",
    "msgId", "tags", "keys", "bodySize", "bodyCrc",
)  # fmt: skip

NAMES: Final = {
    10: "send", 11: "pull", 12: "query-message", 14: "query-consumer-offset",
    15: "update-consumer-offset", 17: "update-topic", 21: "all-topic-config",
    25: "update-broker-config", 26: "get-broker-config", 28: "broker-runtime-info",
    29: "search-offset", 30: "max-offset", 31: "min-offset", 32: "earliest-store-time",
    33: "view-message", 34: "heartbeat", 35: "unregister-client", 36: "send-back",
    37: "end-transaction", 38: "consumer-ids", 39: "check-transaction", 40: "consumer-ids-changed",
    41: "lock-queues", 42: "unlock-queues", 43: "all-consumer-offsets", 45: "all-delay-offsets",
    46: "check-client-config", 100: "put-kv", 101: "get-kv", 102: "delete-kv",
    103: "register-broker", 104: "unregister-broker", 105: "route", 106: "cluster-info",
    200: "update-group", 201: "all-groups", 202: "topic-stats", 203: "consumer-connection",
    204: "producer-connection", 205: "wipe-write-perm", 206: "topic-list", 207: "delete-group",
    208: "consume-stats", 215: "delete-topic-in-broker", 216: "delete-topic-in-namesrv",
    219: "kv-list", 220: "reset-client-offset", 221: "client-status", 222: "reset-offset",
    223: "consumer-status", 224: "topics-by-cluster", 300: "topic-consumers",
    303: "consume-time-span", 304: "system-topics-namesrv", 305: "system-topics-broker",
    306: "clean-expired-queues", 307: "consumer-running-info", 309: "consume-directly",
    310: "send-v2", 314: "clone-group-offset", 315: "broker-stats", 316: "clean-unused-topic",
    317: "broker-consume-stats", 318: "update-namesrv-config", 319: "get-namesrv-config",
    320: "send-batch", 321: "query-consume-queue", 322: "data-version", 324: "send-reply",
    325: "send-reply-v2", 326: "push-reply", 327: "add-write-perm", 328: "all-producers",
    343: "topics-by-consumer", 345: "subscription", 351: "topic-config", 352: "group-config",
    361: "lite-pull", 400: "query-assignment", 901: "broker-member-group", 904: "broker-heartbeat",
}  # fmt: skip

CONSUMER_ADMIN: Final = (
    "consumerConnection -g {group}",
    "consumerStatus -g {group}",
    "consumerProgress -g {group}",
    "consumerProgress",
    "topicStatus -t {topic}",
    "resetOffsetByTime -g {group} -t {topic} -s -1",
)
ADMIN: Final = (
    "topicList",
    "topicList -c",
    "clusterList",
    "topicRoute -t {topic}",
    "topicRoute -t Missing",
    "topicStatus -t {topic}",
    "topicStatus -t Missing",
    "topicClusterList -t {topic}",
    "brokerStatus -b {broker}",
    "brokerConsumeStats -b {broker}",
    "getBrokerConfig -b {broker}",
    "updateBrokerConfig -b {broker} -k flushIntervalCommitLog -v 400",
    "updateTopic -b {broker} -t Made{tag} -r 2 -w 2",
    "updateTopic -c DefaultCluster -t Cluster{tag} -r 3 -w 3",
    "updateTopicPerm -b {broker} -t Made{tag} -p 4",
    "deleteTopic -c DefaultCluster -t Made{tag}",
    "updateSubGroup -b {broker} -g made-{tag}",
    "deleteSubGroup -b {broker} -g made-{tag}",
    "queryMsgByKey -t {topic} -k key-1",
    "queryMsgById {by_id}",
    "queryMsgByUniqueKey -t {topic} -i {unique_id}",
    "queryMsgByOffset -t {topic} -b {broker_name} -i 0 -o 0",
    "queryCq -t {topic} -q 0 -i 0 -c 2 -b {broker}",
    "updateKvConfig -s space -k name -v value",
    "deleteKvConfig -s space -k name",
    "updateOrderConf -t {topic} -v {broker_name}:4 -m put",
    "updateOrderConf -t {topic} -m delete",
    "getNamesrvConfig",
    "wipeWritePerm -n {namesrv} -b {broker_name}",
    "addWritePerm -n {namesrv} -b {broker_name}",
    "cloneGroupOffset -s {group} -d copied-{tag} -t {topic} -o true",
    "cleanExpiredCQ -b {broker}",
    "cleanUnusedTopic -b {broker}",
    "statsAll -t {topic}",
    "producerConnection -g {producer} -t {topic}",
)


def main() -> None:
    """Replace the exchanges and the store fragments."""
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        make_exchanges(Path(scratch) / "wire")
        make_stores(Path(scratch) / "files")


def make_exchanges(directory: Path) -> None:
    """Let both clients, and the broker itself, talk through proxies; write one file each."""
    shutil.rmtree(GOLDEN / "exchanges", ignore_errors=True)
    recording, from_broker = Recording(), list[Exchange]()
    namesrv_port, broker_port = free_port(), free_port()
    behind = ("127.0.0.1", namesrv_port)
    with ExitStack() as stack:
        for_broker = stack.enter_context(
            Proxy("broker-namesrv", ("127.0.0.3", namesrv_port), behind, recording)
        )
        for_clients = stack.enter_context(
            Proxy("client-namesrv", ("127.0.0.2", namesrv_port), behind, recording)
        )
        broker_link = (("127.0.0.2", broker_port), ("127.0.0.1", broker_port))
        stack.enter_context(Proxy("client-broker", *broker_link, recording))
        settings = {
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.2",
            "namesrvAddr": for_broker.address,
            "transactionCheckInterval": "3000",
            "transactionTimeOut": "1000",
        }
        cluster = Cluster(
            directory,
            "apache",
            settings=settings,
            namesrv_settings={"bindAddress": "127.0.0.1"},
            namesrv_port=namesrv_port,
            broker_port=broker_port,
        )
        with cluster:
            broker = f"127.0.0.2:{broker_port}"
            for version in CLIENT_VERSIONS:
                for encoding in ("JSON", "ROCKETMQ"):
                    option = f"-Drocketmq.serialize.type={encoding}"
                    with ExitStack() as peers:
                        ours, other = (
                            peers.enter_context(
                                Peer(
                                    version,
                                    directory / f"peer{i}",
                                    option,
                                    "-Djava.net.preferIPv4Stack=true",
                                )
                            )
                            for i in range(2)
                        )
                        tag = f"{version.replace('.', '')}{encoding[:1]}"
                        talk(
                            ours, other, for_clients.address, broker, tag, brief=encoding != "JSON"
                        )
                    taken = recording.take()
                    from_broker += [item for item in taken if item.link == "broker-namesrv"]
                    said = [item for item in taken if item.link != "broker-namesrv"]
                    write(said, f"client-{RELEASES[version]}-{encoding.lower()}", directory)
            cluster.stop_broker()
            write(from_broker + recording.take(), "broker-5.3.3-json", directory)


def talk(peer: Peer, other: Peer, namesrv: str, broker: str, tag: str, *, brief: bool) -> None:
    """Everything a client says, once: sending, consuming, asking, administering."""
    topic, group, producer = f"Topic{tag}", f"group-{tag}", f"producer-{tag}"
    common: dict[str, object] = {"namesrv": namesrv, "topic": topic}
    plain = peer.run(
        "send", **common, group=producer, count=3, tags="TagA,TagB", keys="key-#", properties="a:1"
    )
    peer.run("send", **common, mode="oneway", count=1)
    peer.run("batch", **common, count=3, tags="TagA", keys="batch-#")
    for compression in ("ZLIB", "LZ4", "ZSTD"):
        peer.run("send", **common, size=6000, compression=compression)
    peer.run("pull", **common, group=group, commit=1)
    peer.run("pull", **common, group=group, begin=100, once=1)
    peer.run("offsets", **common, group=group, timestamp=int(time.time() * 1000))
    peer.run("query", **common, key="key-1")
    if brief:
        return
    peer.run("send", **common, count=1, delayLevel=1)
    peer.run("send", **common, count=1, delayMs=1000)
    peer.run("transaction", **common, decision="COMMIT_MESSAGE")
    peer.run("transaction", **common, decision="ROLLBACK_MESSAGE")
    peer.run("transaction", **common, decision="UNKNOW", checks=1, linger=500)
    peer.run(
        "litepull", **common, group=f"lite-{tag}", count=3, expression="TagA || TagB", timeout=20
    )
    peer.run("push", **common, group=f"order-{tag}", count=3, orderly=1)
    peer.run(
        "push", **common, group=f"retry-{tag}", expression="TagB", refuse=1, count=2, timeout=60
    )
    request_and_reply(peer, other, common)
    offset_id = named(plain, "sent")[0]["offsetMsgId"]
    words = {
        # The 4.9 tool ends the JVM when it meets an option it does not know.
        "by_id": f"-i {offset_id}" if peer.version == "4.9" else f"-t {topic} -i {offset_id}",
        "topic": topic,
        "group": group,
        "producer": producer,
        "broker": broker,
        "broker_name": "broker-a",
        "namesrv": namesrv,
        "tag": tag,
        "unique_id": named(plain, "sent")[0]["msgId"],
    }
    while_consuming(other, common, group, lambda: administer(peer, namesrv, CONSUMER_ADMIN, words))
    administer(peer, namesrv, ADMIN, words)


def request_and_reply(peer: Peer, other: Peer, common: dict[str, object]) -> None:
    asked = {**common, "topic": f"{common['topic']}Ask"}
    peer.mqadmin(str(common["namesrv"]), f"updateTopic -c DefaultCluster -t {asked['topic']}")
    ready = threading.Event()

    def answer() -> None:
        args: dict[str, object] = {"group": "answering", "reply": "answer", "count": 1}
        other.run_watched("push", lambda event: ready.set(), **asked, **args)

    answering = threading.Thread(target=answer)
    answering.start()
    ready.wait(30)
    time.sleep(2)
    peer.run("request", **asked, count=1)
    answering.join()


def while_consuming(other: Peer, common: dict[str, object], group: str, action: Any) -> None:
    ready = threading.Event()

    def consume() -> None:
        args: dict[str, object] = {"group": group, "count": 10_000, "timeout": 18}
        other.run_watched("push", lambda event: ready.set(), **common, **args)

    consuming = threading.Thread(target=consume)
    consuming.start()
    ready.wait(30)
    time.sleep(2)
    action()
    consuming.join()


def administer(peer: Peer, namesrv: str, lines: Iterable[str], words: dict[str, str]) -> None:
    for line in lines:
        try:
            peer.mqadmin(namesrv, line.format(**words))
        except PeerError as failure:
            print(f"mqadmin {line}: {failure.event['message']}")


def write(exchanges: list[Exchange], peer: str, directory: Path) -> None:
    """Write the first exchange of each kind."""
    kept: dict[str, Exchange] = {}
    for exchange in exchanges:
        if exchange.response or exchange.request.is_oneway:
            kept.setdefault(name_of(exchange), exchange)
    target = GOLDEN / "exchanges" / peer
    target.mkdir(parents=True, exist_ok=True)
    for name, exchange in sorted(kept.items()):
        frames = [exchange.request, *([exchange.response] if exchange.response else [])]
        bytes_max = BODY_BYTES_MAX_OLDER if "4.9" in peer else BODY_BYTES_MAX
        if sum(len(frame.body) for frame in frames) > bytes_max:
            print(f"too large: {peer}/{name}")
            continue
        stored: dict[str, Any] = {"link": exchange.link, "asker": exchange.asker}
        stored["request"] = describe(exchange.request, directory)
        if exchange.response is not None:
            stored["response"] = describe(exchange.response, directory)
        (target / f"{name}.json").write_text(
            json.dumps(stored, indent=1, ensure_ascii=False) + "\n"
        )


def name_of(exchange: Exchange) -> str:
    """Return a file name: code, what it is, variant, and how it was answered."""
    request, response = exchange.request, exchange.response
    words = [f"{request.code:03d}", NAMES.get(request.code, "unnamed"), *variant(request)]
    words.append("oneway" if response is None else f"r{response.code}")
    return "-".join(words)


def variant(request: CapturedFrame) -> list[str]:
    """Tell apart the requests of one code whose content differs in kind."""
    fields = request.fields
    if request.code in (310, 320, 325):
        delayed = "DELAY" in fields.get("i", "")
        return [f"sys{fields['f']}", *(["delayed"] if delayed else [])]
    if request.code == 34:
        consumers = json.loads(request.body).get("consumerDataSet", [])
        kinds = sorted({kind["consumeType"].removeprefix("CONSUME_").lower() for kind in consumers})
        return [*kinds] or ["producer"]
    if request.code == 11:
        return [f"sys{fields['sysFlag']}"]
    if request.code == 37:
        return [f"decision{fields['commitOrRollback']}"]
    return []


def describe(frame: CapturedFrame, directory: Path) -> dict[str, Any]:
    """Return what is stored of one frame; only paths of this machine are replaced in it."""
    header = frame.wire[8 : len(frame.wire) - len(frame.body)]
    body = frame.body.replace(str(directory).encode(), b"/data")
    body = body.replace(str(RESOURCES).encode(), b"/opt/rocketmq")
    stored: dict[str, Any] = {"code": frame.code, "encoding": frame.encoding}
    return stored | text_or_hex("header", header) | text_or_hex("body", body)


def text_or_hex(name: str, content: bytes) -> dict[str, str]:
    """Return ``content`` as text if that is readable and exact, else as hexadecimal digits."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {f"{name}_hex": content.hex()}
    readable = all(character.isprintable() or character == "\n" for character in text)
    return {name: text} if readable else {f"{name}_hex": content.hex()}


def make_stores(directory: Path) -> None:
    """Let Apache's broker write a small store; keep the files after SIGTERM and after SIGKILL."""
    settings = {
        "mappedFileSizeCommitLog": "8192",
        "maxMessageSize": "4096",
        "mappedFileSizeConsumeQueue": "400",
        "maxHashSlotNum": "20",
        "maxIndexNum": "60",
        "timerWheelEnable": "false",
    }
    for ending in ("clean", "killed"):
        cluster = Cluster(directory / ending, "apache", settings=settings)
        with cluster, Peer("5.3", directory / "peer", "-Djava.net.preferIPv4Stack=true") as peer:
            sent = fill(peer, cluster.namesrv)
            # The broker writes offsets and groups every five seconds.
            time.sleep(12)
            cluster.stop_broker() if ending == "clean" else cluster.kill_broker()
        save_store(cluster.store, GOLDEN / f"store-{ending}", settings, sent)


def fill(peer: Peer, namesrv: str) -> list[dict[str, Any]]:
    """Send, consume a part, and return what is in the store afterwards."""
    common = {"namesrv": namesrv}
    peer.run(
        "send", **common, topic="Orders", count=8, tags="paid,open", keys="order-#,all", queue=1
    )
    peer.run("send", **common, topic="Orders", count=22, queue=2, body="long", size=300)
    peer.run("batch", **common, topic="Orders", count=3, tags="paid", keys="batch-#")
    peer.run(
        "send",
        **common,
        topic="Orders",
        count=1,
        size=5000,
        compressOver=4096,
        queue=3,
        properties="a:1,b:two",
    )
    peer.run("send", **common, topic="Orders", count=1, delayLevel=18, body="late")
    peer.run("transaction", **common, topic="Orders", decision="COMMIT_MESSAGE", body="committed")
    peer.run("transaction", **common, topic="Orders", decision="ROLLBACK_MESSAGE", body="undone")
    peer.run("pull", **common, topic="Orders", group="audit", queue=1, commit=1)
    pulled = named(peer.run("pull", **common, topic="Orders", group="check"), "message")
    return [{key: message[key] for key in MANIFEST_KEYS} for message in pulled]


def save_store(
    store: Path, target: Path, settings: dict[str, str], messages: list[dict[str, Any]]
) -> None:
    """Copy a store without the zeros its files end with; ``manifest.json`` keeps the full sizes."""
    shutil.rmtree(target, ignore_errors=True)
    sizes: dict[str, int] = {}
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        name = str(path.relative_to(store))
        if name.endswith(".bak") and name not in ("abort.bak", "config/topics.json.bak"):
            continue
        content = path.read_bytes()
        sizes[name] = len(content)
        (target / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (target / "files" / name).write_bytes(content.rstrip(b"\0"))
    lines = ",\n  ".join(json.dumps(message) for message in messages)
    text = f'{{"settings": {json.dumps(settings)},\n "sizes": {json.dumps(sizes, indent=2)},\n'
    (target / "manifest.json").write_text(f'{text} "messages": [\n  {lines}\n]}}\n')


if __name__ == "__main__":
    main()

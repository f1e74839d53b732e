"""Topics and logs as Spark tables: rates as ratios to what Spark does anyway, in the same run.

Messages of 1 KB with bodies that differ are stored by a real broker; the same rows are then read
from its files, from Parquet files without compression, and from the broker by Spark and by the SDK.
A source that hands out one ready batch over and over shows what the way from Python to Spark costs
by itself: no Python source can be faster.

Rates are of the wall clock. On a busy machine they say little: a scan of the log has four processes
and threads at work, and gets a larger share of the cores than one of Parquet files, which has two.
So ratios of CPU time, of the JVM and all its Python workers together, are shown beside them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from bench import BODY, LARGE_FILES, Bench, create_topic, port_of
from load import pipeline, send_frames
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.functions import broadcast
from pyspark.sql.types import StructType

from rocketpost.client import PullConsumer
from rocketpost.spark.log.options import LogOptions
from rocketpost.spark.log.reader import LogReader
from rocketpost.spark.options import parse_options
from rocketpost.spark.records import columns
from rocketpost.spark.records.kernel_fields import COMPILED
from rocketpost.spark.session import make_session
from rocketpost.spark.workers.sockets import ENABLED
from rocketpost.testing import Cluster

TOPIC = "Tables"
QUEUES = 4
TASKS = 2
NARROW = "topic string, queueId int, queueOffset bigint"
FEW = "topic string, keys string, body binary"
AS_TEXT = ", properties as text"
PLAIN = ("Parquet", "log")
FEW_COLUMNS = ", three columns"
NEWER = ", newer half"
GOAL = 1.0
UNWEIGHED = 2**31 - 1
BY_TCP = ", by TCP"
_NOISE = os.urandom(len(BODY) - 8)
_TICKS = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """Seconds of one run: by the wall clock, and of CPU in all processes of Spark."""

    wall: float
    cpu: float


class ReadyBatches(DataSource):
    """One batch of a store's messages, handed out until there are as many rows as in the store."""

    @classmethod
    def name(cls) -> str:
        return "bench-ready"

    def schema(self) -> str:
        return columns.ddl(columns.all_columns(self.options["propertiesFormat"]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyReader(dict(self.options))


class _ReadyReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._rows = int(options.pop("rows")) // TASKS
        shown = options["propertiesformat"]
        self._log = LogReader(parse_options(LogOptions, options), columns.all_columns(shown))

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = next(iter(self._log.read(self._log.partitions()[0])))
        for _ in range(0, self._rows, batch.num_rows):
            yield batch


class RowSink(DataSource):
    """Takes rows as tuples, as most Python sinks do."""

    @classmethod
    def name(cls) -> str:
        return "bench-rows"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _RowWriter()


class _RowWriter(DataSourceWriter):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class ArrowSink(RowSink):
    """Takes batches, as our sink does."""

    @classmethod
    def name(cls) -> str:
        return "bench-batches"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _ArrowWriter()


class _ArrowWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


async def spark(bench: Bench, directory: Path) -> None:
    """Everything about Spark."""
    count = bench.count(1_000_000)
    options = {"spark.driver.memory": "2g", "spark.local.dir": str(directory / "spark")}
    # Workers do not find this module: its classes travel with the task.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Cluster(directory, settings=LARGE_FILES) as cluster:
        await create_topic(cluster, TOPIC, QUEUES)
        await pipeline(port_of(cluster), frames(), count=count)
        store = str(cluster.broker_directory() / "store")
        for sockets in ("", BY_TCP):
            more = {ENABLED: "false"} if sockets else {}
            session = make_session("bench", master=f"local[{TASKS}]", options=options | more)
            try:
                tables(
                    bench, session, store, str(directory / f"parquet{len(more)}"), count, sockets
                )
                if not sockets:
                    sinks(bench, session, store)
                    await broker(bench, session, cluster, count)
            finally:
                session.stop()
        memory(bench, store)


def frames() -> Callable[[int], bytes]:
    """Return frames with bodies of which no two are the same."""
    frame = send_frames(TOPIC, lambda number: number % QUEUES, BODY)
    return lambda number: frame(number)[: -len(BODY)] + _NOISE + number.to_bytes(8, "big")


def tables(
    bench: Bench, session: SparkSession, store: str, parquet: str, count: int, sockets: str
) -> None:
    """The log against Parquet, with properties as they are stored, and as the maps of the default.

    Each is compared with files that have the properties in the same form, and with the same columns
    and rows of them. Spark talks to its Python workers by Unix sockets, as in all sessions of ours
    on one machine; what TCP costs is shown.
    """

    def log(schema: str = "", **more: str) -> DataFrame:
        reader = session.read.format("rocketmq-log").options(**more)
        return (reader.schema(schema) if schema else reader).load(store)

    def ready(shown: str) -> DataFrame:
        reader = session.read.format("bench-ready").option("propertiesFormat", shown)
        return reader.option("rows", count).load(store)

    session.dataSource.register(ReadyBatches)

    def stored(frame: DataFrame, name: str) -> DataFrame:
        frame.write.option("compression", "uncompressed").parquet(f"{parquet}/{name}")
        return session.read.parquet(f"{parquet}/{name}")

    every, as_text = log(), log(propertiesFormat="string")
    parquet_every = stored(every, "map")
    median = "percentile_approx(unix_millis(storeTimestamp), 0.5)"
    middle = parquet_every.selectExpr(median).collect()[0][0]
    ways = {
        "Parquet": parquet_every,
        "log": every,
        "log, every record": log(view="log"),
        "log, without bodies": log(NARROW),
        "ready batches": ready("map"),
        f"Parquet{FEW_COLUMNS}": parquet_every.select("topic", "keys", "body"),
        f"log{FEW_COLUMNS}": log(FEW),
        f"Parquet{NEWER}": parquet_every.where(f"storeTimestamp >= timestamp_millis({middle})"),
        f"log{NEWER}": log(startingTimestamp=str(middle)),
        f"Parquet{AS_TEXT}": stored(as_text, "text"),
        f"log{AS_TEXT}": as_text,
        f"ready batches{AS_TEXT}": ready("string"),
    }
    if sockets:
        ways = {name: way for name, way in ways.items() if name.removesuffix(AS_TEXT) in PLAIN}
    assert ways["Parquet"].count() == ways["log"].count() == count
    spents = timed(bench, session, ways)
    kernel = f"({'compiled' if COMPILED else 'plain'} kernel)"
    for name, spent in spents.items():
        rows = count / 2 if name.endswith(NEWER) else count
        rate = rows / statistics.median(each.wall for each in spent) / 1000
        bench.add(f"scan 1 KB, {name}{sockets}", rate, "k rows/s")
    goals = {"log": GOAL, f"log{AS_TEXT}": GOAL} if COMPILED and not sockets else {}
    for name in [name for name in ways if not name.startswith("Parquet")]:
        theirs = f"Parquet,{name.partition(',')[2]}"
        compared = spents.get(theirs, spents["Parquet"]), spents[name]
        what = f"scan 1 KB, {name}, to Parquet{sockets}"
        bench.add(what, ratio_of(*compared), "x", least=goals.get(name), note=kernel)
        bench.add(f"{what}, CPU", cpu_ratio_of(*compared), "x", note=kernel)
    if "log, without bodies" in spents:
        ratio = ratio_of(spents["log"], spents["log, without bodies"])
        bench.add("scan 1 KB, without bodies to with them", ratio, "x", least=1.5)


def sinks(bench: Bench, session: SparkSession, store: str) -> None:
    """What a sink costs that takes batches, against one that takes rows.

    One message of the store is given again and again, so that its making costs next to nothing.
    Spark weighs the batch it fills after every row; the guide tells who may switch that off.
    """
    session.dataSource.register(RowSink)
    session.dataSource.register(ArrowSink)
    messages = session.read.format("rocketmq-log").load(store)
    one = session.createDataFrame(messages.limit(1).collect(), messages.schema)
    rows = bench.count(500_000)
    frame = session.range(0, rows, 1, TASKS).crossJoin(broadcast(one)).drop("id")
    for weighed in (True, False):
        if not weighed:
            session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(UNWEIGHED))
        how = "" if weighed else ", batches not weighed"
        ways = {"rows": frame, "batches": frame}
        spents = timed(bench, session, ways, sink="bench-{}".format)
        for name, spent in spents.items():
            rate = rows / statistics.median(each.wall for each in spent) / 1000
            bench.add(f"sink, {name}{how}", rate, "k rows/s")
        ratio = ratio_of(spents["rows"], spents["batches"])
        bench.add(f"sink, batches to rows{how}", ratio, "x", least=None if weighed else 5)
    session.conf.unset("spark.sql.execution.arrow.maxBytesPerBatch")


async def broker(bench: Bench, session: SparkSession, cluster: Cluster, count: int) -> None:
    """The broker as a source against the SDK's pulls of the same messages."""
    reader = session.read.format("rocketmq").option("nameServer", cluster.addresses)
    frame = reader.option("topic", TOPIC).load()
    spents: dict[str, list[float]] = {"SDK": [], "Spark": []}
    for _ in range(bench.rounds):
        began = time.perf_counter()
        assert await pulled(cluster) == count
        spents["SDK"].append(time.perf_counter() - began)
        began = time.perf_counter()
        frame.write.format("noop").mode("append").save()
        spents["Spark"].append(time.perf_counter() - began)
    for name, spent in spents.items():
        bench.add(f"from the broker, {name}", count / statistics.median(spent) / 1000, "k rows/s")
    ratio = median_ratio(spents["SDK"], spents["Spark"])
    bench.add("from the broker, Spark to SDK", ratio, "x", least=0.7)


async def pulled(cluster: Cluster) -> int:
    """Pull everything, queue by queue; return how many messages that were."""
    count = 0
    async with PullConsumer("bench", name_servers=cluster.addresses) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                found = await consumer.pull(queue, offset, count_max=1024)
                offset = found.next_offset
                count += len(found.messages)
    return count


def memory(bench: Bench, store: str) -> None:
    """What tasks need to their end, over what they need for their first batch."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        grown, rows = pool.apply(_grown, (store,))
    bench.add("memory of a task after its first batch", grown, "MB", most=64, note=f"{rows:,} rows")


def _grown(store: str) -> tuple[float, int]:
    reader = LogReader(parse_options(LogOptions, {"path": store}), columns.all_columns())
    rows, first = 0, 0
    for partition in reader.partitions():
        for batch in reader.read(partition):
            rows += batch.num_rows
            first = first or _peak_kb()
    return (_peak_kb() - first) / 1024, rows


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def timed(
    bench: Bench,
    session: SparkSession,
    ways: dict[str, DataFrame],
    sink: Callable[[str], str] = lambda _: "noop",
) -> dict[str, list[Spent]]:
    """Run every way once in each round, so that what disturbs one disturbs all.

    Each round begins with another way: the JVM collects the garbage of one way during the next.
    """
    jvm = jvm_pid(session)
    spents: dict[str, list[Spent]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(bench.rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            before, began = cpu_of_family(jvm), time.perf_counter()
            ways[name].write.format(sink(name)).mode("append").save()
            wall, after = time.perf_counter() - began, cpu_of_family(jvm)
            if number:  # the first one warms the machine up
                cpu = sum(spent - before.get(pid, 0) for pid, spent in after.items())
                spents[name].append(Spent(wall, cpu))
    return spents


def jvm_pid(session: SparkSession) -> int:
    """Return the process id of a session's JVM."""
    jvm = session.sparkContext._jvm
    assert jvm is not None
    return int(jvm.java.lang.ProcessHandle.current().pid())


def cpu_of_family(ancestor: int) -> dict[int, float]:
    """Return the CPU seconds of a process and of its living descendants, by process id."""
    spents: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            children.setdefault(int(fields[1]), []).append(pid)
            spents[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
    family = [ancestor]
    for pid in family:
        family += children.get(pid, [])
    return {pid: spents[pid] for pid in family}


def ratio_of(theirs: list[Spent], ours: list[Spent]) -> float:
    """Return how much faster ours is, by the median of the rounds."""
    return median_ratio([each.wall for each in theirs], [each.wall for each in ours])


def cpu_ratio_of(theirs: list[Spent], ours: list[Spent]) -> float:
    """Return how much less CPU ours takes, by the median of the rounds."""
    return median_ratio([each.cpu for each in theirs], [each.cpu for each in ours])


def median_ratio(theirs: list[float], ours: list[float]) -> float:
    """Return the median of the ratios of the rounds."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))

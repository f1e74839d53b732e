"""What metrics cost: messages of a broker that serves them, and the loop's time for a scrape.

Four brokers take the same load by turns: two without metrics, and two that serve them. Where a
process has its code and data in memory makes it some percent cheaper or dearer for all its life. So
the cheaper broker of each pair is compared, and the ratio within a pair is the noise of this run. A
fifth broker has about 10,000 series, all of which change between two scrapes. It is scraped as
Prometheus does, and the CPU of its event loop's thread is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import LARGE_FILES, Bench
from builds import Build
from load import pipeline, pull_fields, send_frames
from rounds import measure
from servers import Target, our_broker
from workloads import ASYNC_FLUSH, choose, prepare

import rocketpost
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import encode_command
from rocketpost.kernel import FORM
from rocketpost.testing.process import free_port

ROWS: Final = "send,64x1,single,pull,sync"
OFF: Final = ("off", "off too")
ON: Final = ("on", "on too")
SERVED: Final = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
RATIO_MAX: Final = 1.02
SCALE: Final = 0.2
ROUNDS: Final = 6
"""Rounds for each round of other benchmarks: short ones find quiet moments of the machine."""

TOPICS: Final = 560
"""Each has 18 samples: 11 of its own, and 7 of a group that reads it."""
SAMPLES_MIN: Final = 10_000
SCRAPES: Final = 15
LOOP_MS_MAX: Final = 10


async def metrics(bench: Bench, directory: Path) -> None:
    """Messages with and without metrics, then scrapes."""
    await asyncio.to_thread(messages, bench, directory)
    await scrapes(bench, directory)


def messages(bench: Bench, directory: Path) -> None:
    """Compare brokers that serve metrics with those that do not."""
    folder = Path(rocketpost.__file__).parents[2]
    rows = choose(ROWS)
    for flush in sorted({row.flush for row in rows}):
        with contextlib.ExitStack() as stack:
            targets: Sequence[Target] = [
                stack.enter_context(
                    our_broker(
                        Build(name, folder, FORM.is_compiled),
                        directory / flush / name,
                        flush=flush,
                        settings=SERVED if name in ON else None,
                    )
                )
                for name in (OFF[0], ON[0], OFF[1], ON[1])
            ]
            for target in targets:
                prepare(target.port, warm_up=bench.count(4000))
            chosen = [row for row in rows if row.flush == flush]
            scale = SCALE * bench.scale
            found = measure(targets, chosen, rounds=ROUNDS * bench.rounds, scale=scale)
        for row in chosen:
            off, on = ([found.least(row.name, name) for name in pair] for pair in (OFF, ON))
            bench.add(f"{row.title}, without metrics", min(off), "us/message")
            for what, pair in (("without", off), ("with", on)):
                bench.add(f"{row.title}, noise of two {what}", max(pair) / min(pair), "x")
            bench.add(f"{row.title}, metrics to without", min(on) / min(off), "x", most=RATIO_MAX)


async def scrapes(bench: Bench, directory: Path) -> None:
    """Scrape a broker with many series, all of which have changed since the scrape before."""
    build = Build("scraped", Path(rocketpost.__file__).parents[2], FORM.is_compiled)
    port = free_port()
    settings = {**LARGE_FILES, **SERVED, "metricsPromExporterPort": str(port)}
    with our_broker(build, directory / "scraped", flush=ASYNC_FLUSH, settings=settings) as broker:
        spent = []
        for offset in range(1 + SCRAPES):
            await change_all(broker.port, offset)
            await get(port, "/-/healthy")  # the loop has done by then what it had to do
            before = loop_seconds(broker.pid)
            body = await get(port, "/metrics")
            spent.append((loop_seconds(broker.pid) - before) * 1000)
        text = gzip.decompress(body).decode()
        samples = sum(1 for line in text.splitlines() if not line.startswith("#"))
    if samples < SAMPLES_MIN:
        raise SystemExit(f"a scrape has {samples} samples, which are too few")
    note = f"{samples:,} samples, all changed; {len(body) / 1024:.0f} KB zipped"
    bench.add("first scrape, CPU of the loop", spent[0], "ms")
    bench.add("median scrape, CPU of the loop", statistics.median(spent[1:]), "ms")
    bench.add("least scrape, CPU of the loop", min(spent), "ms", most=LOOP_MS_MAX, note=note)


async def change_all(port: int, offset: int) -> None:
    """Send a message to every topic, and have the group pull it and commit what it had before."""
    sends = send_frames(
        "", lambda number: 0, b"x" * 100, topic_of=lambda number: f"scraped-{number:04}"
    )
    await pipeline(port, sends, count=TOPICS)

    def pull(number: int) -> bytes:
        fields = pull_fields(f"scraped-{number:04}", 0, offset)
        return encode_command(RequestCode.PULL_MESSAGE, opaque=1, fields=fields)

    def commit(number: int) -> bytes:
        fields = {
            "consumerGroup": "bench",
            "topic": f"scraped-{number:04}",
            "queueId": "0",
            "commitOffset": str(offset),
        }
        return encode_command(RequestCode.UPDATE_CONSUMER_OFFSET, opaque=1, fields=fields)

    for frames in (pull, commit):
        run = await pipeline(port, frames, count=TOPICS)
        if run.failures:
            raise SystemExit(f"{run.failures} of {run.messages} requests failed")


async def get(port: int, path: str) -> bytes:
    """Ask as Prometheus does; return the body as it was on the wire."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write(
        b"GET %b HTTP/1.1\r\nHost: broker\r\nAccept-Encoding: gzip\r\n"
        b"Accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4\r\n\r\n"
        % path.encode()
    )
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(f"{path} failed: {head[:100]!r}")
    return body


def loop_seconds(pid: int) -> float:
    """Return the CPU seconds of a broker's first thread, which runs its event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

"""What metrics cost: messages of a broker that serves them, and the loop's time for a scrape.

One broker measures requests in every other turn (``switched_broker``), since two processes differ
by more than metrics cost. Each turn with metrics is compared with the turns before and after it;
the median of these ratios is shown with its standard error. The counts of the broker prove that it
was switched.

A second broker has about 10,000 series, all of which change between two scrapes. It is scraped as
Prometheus does, and the CPU of its event loop's thread is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import re
import signal
import statistics
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench import LARGE_FILES, Bench
from builds import Build
from closed_loop import max_offset
from load import pipeline, pull_fields, send_frames
from servers import HERE, Target, cpu_seconds, our_broker
from workloads import ASYNC_FLUSH, TOPIC, Workload, choose, prepare

import rocketpost
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import encode_command
from rocketpost.kernel import FORM
from rocketpost.testing.process import free_port

ROWS: Final = "send,64x1,single,pull,sync"
SERVED: Final = {"metricsExporterType": "PROM"}
RATIO_MAX: Final = 1.02
SCALE: Final = 0.2
TURNS: Final = 60
"""Turns for each round of other benchmarks: short ones, so that neighbours are alike."""

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
    """Compare turns in which requests are measured with those in which they are not."""
    rows = choose(ROWS)
    for flush in sorted({row.flush for row in rows}):
        with switched_broker(directory / flush, flush=flush) as (broker, port):
            prepare(broker.port, warm_up=bench.count(4000))
            for row in rows:
                if row.flush == flush:
                    compare(bench, broker, port, row)


@contextlib.contextmanager
def switched_broker(directory: Path, *, flush: str) -> Iterator[tuple[Target, int]]:
    """Run a broker that can be switched; yields it and the port of its metrics."""
    port = free_port()
    build = Build("switched", Path(rocketpost.__file__).parents[2], FORM.is_compiled)
    settings = {**SERVED, "metricsPromExporterPort": str(port)}
    program = [str(HERE / "switched_broker.py")]
    with our_broker(build, directory, flush=flush, settings=settings, program=program) as broker:
        yield broker, port


def compare(bench: Bench, broker: Target, port: int, row: Workload) -> None:
    """Run a workload by turns with and without metrics."""
    requests, scale, sent = row.requests(), SCALE * bench.scale, 0
    counted = lane_requests(port)
    costs: list[float] = []
    for number in range(max(8, TURNS * bench.rounds)):
        before = cpu_seconds(broker.pid)
        run = row.run(broker.port, requests, scale=scale)
        messages = run.requests * row.per_request
        costs.append((cpu_seconds(broker.pid) - before) / messages * 1e6)
        sent += run.requests if number % 2 == 0 else 0
        switch(broker)
    if len(costs) % 2:
        switch(broker)
    if not sent / 2 < lane_requests(port) - counted <= sent:  # a lane leaves the first requests
        raise SystemExit(f"{row.name}: the broker was not switched with every turn")
    ratios = [
        costs[turn] / statistics.fmean((costs[turn - 1], costs[turn + 1]))
        for turn in range(2, len(costs) - 1, 2)
    ]
    error = 1.2533 * statistics.stdev(ratios) / len(ratios) ** 0.5  # that of a median
    note = f"standard error {error:.3f}"
    bench.add(f"{row.title}, without metrics", statistics.median(costs[1::2]), "us/message")
    ratio = statistics.median(ratios)
    bench.add(f"{row.title}, metrics to without", ratio, "x", most=RATIO_MAX, note=note)


def switch(broker: Target) -> None:
    """Have the broker start or stop to measure requests."""
    os.kill(broker.pid, signal.SIGUSR2)
    max_offset(broker.port, TOPIC, 0)  # the loop has handled the signal when it has answered


def lane_requests(port: int) -> int:
    """Return the number of requests that the lanes have measured."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r"^rocketpost_lane_requests_total\{.*\} (\S+)", text, re.MULTILINE)
    assert len(found) == 2, found
    return int(sum(map(float, found)))


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

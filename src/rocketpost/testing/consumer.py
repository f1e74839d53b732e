"""A consumer program that records everything it does in a journal.

    python -m rocketpost.testing.consumer --name c1 --group G --topic T --journal FILE
        --name-servers HOST:PORT [--orderly] [--threads] [--slow SECONDS] [--fail SHARE]
        [--config JSON]

It is meant to be killed, frozen and stopped (SIGTERM). Its handler takes up to ``--slow`` seconds
and sometimes raises; ``--config`` has fields of :class:`PushConsumerConfig`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rocketpost.client import (
    Average,
    MessageQueue,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    StartFrom,
    Suspend,
)
from rocketpost.testing import journal as words
from rocketpost.testing.journal import ConsumerJournal, join_names
from rocketpost.testing.ledger import NUMBER_PROPERTY

READY: Final = r"^consumer \S+ ready$"
_SUSPEND_SECONDS: Final = 0.02


def queue_name(queue: MessageQueue) -> str:
    """Return a queue's name in the journal."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


class NotedAverage:
    """The default strategy; records the members and the share of every round of rebalance."""

    name = Average.name

    def __init__(self, journal: ConsumerJournal, who: str) -> None:
        self._journal = journal
        self._who = who
        self._inner = Average()

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of ``client_id``."""
        share = self._inner(client_id, queues, members)
        self._journal.write(
            words.SHARE,
            self._who,
            queues[0].topic,
            join_names([queue_name(queue) for queue in share]),
            join_names([member.partition("@")[2] for member in members]),
        )
        return share


class NotedHandler:
    """Records each message before and after handling it, which takes a while and may fail."""

    def __init__(self, journal: ConsumerJournal, arguments: argparse.Namespace) -> None:
        self._journal = journal
        self._who: str = arguments.name
        self._slow: float = arguments.slow
        self._fail: float = arguments.fail
        self._orderly: bool = arguments.orderly
        self._retry_level: int = arguments.retry_level
        self._rng = random.Random(arguments.name)

    async def handle(self, message: ReceivedMessage) -> None:
        """Handle a message on the loop."""
        self._note(words.BEGIN, message)
        await asyncio.sleep(self._seconds())
        self._end(message)

    def handle_blocking(self, message: ReceivedMessage) -> None:
        """Handle a message in a thread."""
        self._note(words.BEGIN, message)
        time.sleep(self._seconds())
        self._end(message)

    def _seconds(self) -> float:
        return self._rng.uniform(0, self._slow)

    def _end(self, message: ReceivedMessage) -> None:
        if self._rng.random() < self._fail:
            self._note(words.FAIL, message)
            raise Suspend(_SUSPEND_SECONDS) if self._orderly else Retry(self._retry_level)
        self._note(words.DONE, message)

    def _note(self, what: str, message: ReceivedMessage) -> None:
        number = message.properties.get(NUMBER_PROPERTY, "0")
        key = message.sharding_key or "-"
        queue = queue_name(message.queue)
        self._journal.write(what, self._who, queue, message.queue_offset, number, key)


async def run(arguments: argparse.Namespace) -> None:
    """Consume until SIGTERM."""
    journal = ConsumerJournal(arguments.journal)
    config = PushConsumerConfig(
        name_servers=arguments.name_servers,
        instance_name=arguments.name,
        start_from=StartFrom.FIRST,
        **json.loads(arguments.config),
    )
    strategy = NotedAverage(journal, arguments.name)
    consumer = PushConsumer(arguments.group, config=config, strategy=strategy)
    noted = NotedHandler(journal, arguments)
    handler = noted.handle_blocking if arguments.threads else noted.handle
    consumer.subscribe(arguments.topic, handler, orderly=arguments.orderly)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with consumer:
        kind = [words.THREADS] if arguments.threads else []
        journal.write(words.JOINED, arguments.name, *kind)
        print(f"consumer {arguments.name} ready", flush=True)
        await stopped.wait()
    journal.write(words.LEFT, arguments.name)
    journal.close()


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description="A consumer that notes all it does.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--journal", required=True, type=Path)
    parser.add_argument("--name-servers", required=True)
    parser.add_argument("--orderly", action="store_true")
    parser.add_argument("--threads", action="store_true", help="handle in threads")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds a handler takes at most")
    parser.add_argument("--fail", type=float, default=0.0, help="share of calls that raise")
    parser.add_argument("--retry-level", type=int, default=1, help="delay level of retries")
    parser.add_argument("--config", default="{}", help="fields of PushConsumerConfig, as JSON")
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s", level=20)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

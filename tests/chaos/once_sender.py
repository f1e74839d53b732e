"""A job that is run again when it dies: ``python once_sender.py NAMESRV DIRECTORY``.

It sends epoch after epoch of numbered messages under one producer id, singly and in batches, as a
sink does with its batches of rows. DIRECTORY/acked gets a line for each answer, DIRECTORY/done the
last epoch that is complete; it begins again after that one. It ends when DIRECTORY/stop is there.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from rocketpost.client import Message, Producer, ProducerConfig, RocketpostError, SendResult

TOPIC = "Rows"
ROWS = 120
CONFIG = {"send_timeout": 60.0, "attempt_timeout": 1.0, "route_seconds": 1.0}


async def send_epoch(name_servers: str, epoch: int, acked: int) -> None:
    config = ProducerConfig(name_servers=name_servers, **CONFIG)  # type: ignore[arg-type]

    def note(sequence: int, result: SendResult) -> None:
        queue, offset = result.queue.queue_id, result.queue_offset
        line = f"{epoch} {sequence} {queue} {offset} {result.duplicate:d}\n"
        os.write(acked, line.encode())

    def message(sequence: int) -> Message:
        key = "ordered" if sequence % 3 == 0 else None
        return Message(TOPIC, b"%d %d" % (epoch, sequence), sharding_key=key)

    async with Producer(
        "job", config=config, idempotent=True, producer_id="job/1", epoch=epoch
    ) as producer:
        half = ROWS // 2
        futures = []
        for n in range(half):
            future = await producer.send_soon(message(n), sequence=n)
            future.add_done_callback(
                lambda done, n=n: note(n, done.result()) if not done.exception() else None
            )
            futures.append(future)
            await asyncio.sleep(0.001)
        for first in range(half, ROWS, 20):
            rows = [Message(TOPIC, b"%d %d" % (epoch, n)) for n in range(first, first + 20)]
            results = await producer.send_batch(rows, first_sequence=first)
            for at, result in enumerate(results):
                note(first + at, result)
        await asyncio.gather(*futures)


async def main(name_servers: str, directory: Path) -> None:
    acked = os.open(directory / "acked", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    done = directory / "done"
    while not (directory / "stop").exists():
        epoch = int(done.read_text()) + 1 if done.exists() else 0
        try:
            await send_epoch(name_servers, epoch, acked)
        except RocketpostError as error:
            print(f"epoch {epoch} again: {error!r}", file=sys.stderr)
            await asyncio.sleep(0.2)  # the broker is gone, and the name server knows
            continue
        new = directory / "done.new"
        new.write_text(str(epoch))
        os.replace(new, done)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))

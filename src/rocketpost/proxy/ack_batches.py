"""Acknowledgements of several calls in one request.

The official clients acknowledge every message with a separate call. Calls of one client that arrive
together become one request, which the broker stores as one record for each checkpoint.
"""

from __future__ import annotations

import asyncio
from typing import Final

from rocketpost.codec.bodies.pop import AckSet, BatchAck, encode_batch_ack, encode_bits
from rocketpost.codec.codes import RequestCode
from rocketpost.proxy.backend import Link
from rocketpost.proxy.gathering import Gathering
from rocketpost.proxy.popped import Taken, acknowledge

SPAN_MAX: Final = 4096
"""Most offsets of one checkpoint; a broker pops far fewer, so a handle with more is forged."""

_Key = tuple[Link, str, str, str]
_Checkpoint = tuple[int, int, int, int, int]


class _Batch:
    """Acknowledgements for one broker, group and topic."""

    def __init__(self, first: Taken) -> None:
        self.first = first
        self.offsets: dict[_Checkpoint, list[int]] = {}
        self.count = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, taken: Taken) -> None:
        receipt = taken.handle.receipt
        checkpoint = (
            receipt.start_offset,
            receipt.pop_ms,
            receipt.queue_id,
            receipt.retry,
            receipt.revive_queue,
        )
        self.offsets.setdefault(checkpoint, []).append(receipt.offset)
        self.count += 1

    def body(self) -> bytes:
        group, topic = self.first.group, self.first.topic
        acks = [
            AckSet(
                b=encode_bits(start, offsets),
                c=group,
                pt=pop_ms,
                q=queue_id,
                r=str(retry),
                rq=revive_queue,
                so=start,
                t=topic,
            )
            for (start, pop_ms, queue_id, retry, revive_queue), offsets in self.offsets.items()
        ]
        broker = self.first.handle.receipt.broker
        return encode_batch_ack(BatchAck(acks=acks, broker_name=broker))


class AckBatches:
    """Sends acknowledgements together. Belongs to the event loop.

    Args:
        gathering: Has acknowledgements wait for each other; None to send each alone.
    """

    def __init__(self, gathering: Gathering | None) -> None:
        self._gathering = gathering
        self._open: dict[_Key, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def acknowledge(self, link: Link, taken: Taken) -> None:
        """Acknowledge a message; return when that is stored.

        Raises:
            Fault: The broker refuses.
            ClientError: The broker does not answer.
        """
        receipt = taken.handle.receipt
        is_alone = not 0 <= receipt.offset - receipt.start_offset < SPAN_MAX
        if self._gathering is None or is_alone:
            await acknowledge(link, taken)
            return
        key = link, receipt.broker, taken.group, taken.topic
        batch = self._open.get(key)
        if batch is None:
            batch = self._open[key] = _Batch(taken)
            task = asyncio.ensure_future(self._send(key, batch, self._gathering))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._gathering.note_ready()
        batch.add(taken)
        await asyncio.shield(batch.done)  # one caller that is gone does not end the others

    async def _send(self, key: _Key, batch: _Batch, gathering: Gathering) -> None:
        link = key[0]
        try:
            await gathering.wait()
            del self._open[key]
            if batch.count == 1:
                await acknowledge(link, batch.first)
            else:
                broker = batch.first.handle.receipt.broker
                await link.call(broker, RequestCode.BATCH_ACK_MESSAGE, body=batch.body())
        except Exception as error:
            batch.done.set_exception(error)
            batch.done.exception()  # all callers may be gone
        else:
            batch.done.set_result(None)

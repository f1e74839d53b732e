"""A load that goes on while a broker changes its role, and a record of what was acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.headers.pop import (
    PopResponse,
    Receipt,
    parse_receipt,
    parse_start_offsets,
    real_topic,
)
from rocketpost.codec.record import Record, decode_records, parse_message_id
from rocketpost.server.broker import BrokerServer

from .settings.harness import Peer, peer_at

QUEUES = 2
INVISIBLE_MS = 1000
HOLD_MS = 60_000
"""Far longer than any test: a held request must be answered by something else than its time."""
_numbers = itertools.count()
_COMMIT = 8
_SENT_TO_FOLLOWER = ResponseCode.SYSTEM_BUSY
_BETWEEN_TERMS = ResponseCode.SERVICE_NOT_AVAILABLE
_PULLED = {ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, _BETWEEN_TERMS}
_POPPED = {ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT, _BETWEEN_TERMS}


class Load:
    """Clients of one broker."""

    def __init__(self) -> None:
        self.stored: dict[tuple[int, int], bytes] = {}
        """The acknowledged messages, by queue and offset."""
        self.pulled: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
        """The messages that a consumer of each queue got, in its order."""
        self.later: list[str] = []
        """Keys of acknowledged messages that are delivered later."""
        self.to_pop: set[bytes] = set()
        """Acknowledged messages for those who pop."""
        self.popped: set[bytes] = set()
        self.refused = 0
        self.pops_answered = 0
        self.waits_answered = 0
        """Answered pulls of a queue in which nothing ever arrives."""
        self.progress = asyncio.Condition()

    def __str__(self) -> str:
        return (
            f"acknowledged={len(self.stored) + len(self.to_pop) + len(self.later)} "
            f"refused={self.refused} pulls_answered={self.waits_answered} "
            f"pops_answered={self.pops_answered} popped={len(self.popped)}"
        )

    async def wait_for_sends(self, count: int) -> None:
        """Return when so many more messages were acknowledged."""
        goal = len(self.stored) + count
        async with self.progress:
            await self.progress.wait_for(lambda: len(self.stored) >= goal)

    async def wait_for_refusals(self, count: int) -> None:
        """Return when so many more sends were refused."""
        goal = self.refused + count
        async with self.progress:
            await self.progress.wait_for(lambda: self.refused >= goal)

    async def send(self, peer: Peer, queue_id: int) -> None:
        number = 0
        while True:
            number += 1
            body = b"%d:%d" % (queue_id, number)
            answer = await peer.send("T", body, QUEUES, queue_id)
            if answer.code == ResponseCode.SUCCESS:
                assert int(answer.fields["queueId"]) == queue_id
                self.stored[queue_id, int(answer.fields["queueOffset"])] = body
            else:
                assert answer.code in {_SENT_TO_FOLLOWER, _BETWEEN_TERMS}, answer.remark
                self.refused += 1
            async with self.progress:
                self.progress.notify_all()

    async def send_later(self, peer: Peer) -> None:
        """Send messages that wait: one delayed, one timed."""
        properties = ({"DELAY": "1"}, {"TIMER_DELAY_MS": "50"})
        while True:
            for more in properties:
                key = f"later{next(_numbers)}"
                answer = await peer.send("Later", b"later", 1, 0, UNIQ_KEY=key, **more)
                assert answer.code in {0, _SENT_TO_FOLLOWER, _BETWEEN_TERMS}, answer.remark
                if answer.code == 0:
                    self.later.append(key)
            await asyncio.sleep(0.01)  # a load, not a wait: few of these are enough

    async def send_transactions(self, peer: Peer) -> None:
        """Send halves and commit them, in whichever term that succeeds."""
        while True:
            key = f"half{next(_numbers)}"
            half = await peer.send(
                "Later", b"half", 1, 0, UNIQ_KEY=key, TRAN_MSG="true", PGROUP="P"
            )
            if half.code != 0:
                assert half.code in {_SENT_TO_FOLLOWER, _BETWEEN_TERMS}, half.remark
                continue
            _, position = parse_message_id(half.fields["msgId"])
            while True:
                end = await peer.call(
                    Code.END_TRANSACTION, producerGroup="P", msgId=key, transactionId=key,
                    tranStateTableOffset=half.fields["queueOffset"], commitLogOffset=position,
                    commitOrRollback=_COMMIT, fromTransactionCheck="false",
                )  # fmt: skip
                if end.code == ResponseCode.SUCCESS:
                    break
                assert end.code in {ResponseCode.SLAVE_NOT_AVAILABLE, _BETWEEN_TERMS}, end.remark
            self.later.append(key)
            await asyncio.sleep(0.01)  # a load, not a wait: few of these are enough

    async def send_popped(self, peer: Peer) -> None:
        """Send messages to those who pop."""
        while True:
            body = b"%d" % next(_numbers)
            answer = await peer.send("Popped", body, 1, 0)
            if answer.code == ResponseCode.SUCCESS:
                self.to_pop.add(body)
            await asyncio.sleep(0.01)  # a load, not a wait: few of these are enough

    async def pop_and_ack(self, peer: Peer) -> None:
        while True:
            await pop_and_ack(peer, self.popped)

    async def pull(self, peer: Peer, queue_id: int) -> None:
        bodies = self.pulled[queue_id]
        while True:
            answer = await peer.pull("T", len(bodies), hold_ms=HOLD_MS, queueId=queue_id)
            assert answer.code in _PULLED, (answer.code, answer.remark)
            bodies += [record.body for record in decode_records(answer.body)]

    async def wait_at_end(self, peer: Peer) -> None:
        """Pull where nothing ever arrives: each answer is that of a term which ended."""
        while True:
            answer = await peer.pull("Silent", 0, hold_ms=HOLD_MS)
            assert answer.code in _PULLED, (answer.code, answer.remark)
            self.waits_answered += 1

    async def pop(self, peer: Peer) -> None:
        while True:
            answer = await peer.call(
                Code.POP_MESSAGE, consumerGroup="Popping", topic="Silent", queueId=-1,
                maxMsgNums=8, invisibleTime=30_000, pollTime=HOLD_MS, bornTime=1, initMode=0,
            )  # fmt: skip
            assert answer.code in _POPPED, (answer.code, answer.remark)
            self.pops_answered += 1


@contextlib.asynccontextmanager
async def load_on(server: BrokerServer) -> AsyncIterator[Load]:
    """Run clients until the block ends; then wait until consumers have got everything."""
    load = Load()
    async with contextlib.AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(peer_at("127.0.0.1", server.port)) for _ in range(11)
        ]
        tasks = [
            asyncio.create_task(work, name="load")
            for work in (
                load.send(peers[0], 0),
                load.send(peers[1], 1),
                load.send_later(peers[2]),
                load.pull(peers[3], 0),
                load.pull(peers[4], 1),
                load.wait_at_end(peers[5]),
                load.pop(peers[6]),
                load.send_transactions(peers[8]),
                load.send_popped(peers[9]),
                load.pop_and_ack(peers[10]),
            )
        ]
        try:
            yield load
            failed = [task for task in tasks if task.done()]
            assert not failed, failed
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await _pull_rest(load, peers[7])
        await _await_later(load, peers[7])
        while not load.to_pop <= load.popped:
            await pop_and_ack(peers[7], load.popped)


async def pop_and_ack(peer: Peer, popped: set[bytes]) -> None:
    """Pop some messages, note them, and acknowledge them; a term may end in between."""
    answer = await peer.call(
        Code.POP_MESSAGE, consumerGroup="Popping", topic="Popped", queueId=-1, maxMsgNums=8,
        invisibleTime=INVISIBLE_MS, pollTime=100, bornTime=1, initMode=0,
    )  # fmt: skip
    assert answer.code in _POPPED, (answer.code, answer.remark)
    if answer.code != ResponseCode.SUCCESS:
        return
    head = answer.read(PopResponse)
    starts = parse_start_offsets(head.start_offset_info or "")
    for record in decode_records(answer.body):
        popped.add(record.body)
        text = record.properties.get("POP_CK") or str(_receipt(head, starts, record))
        receipt = parse_receipt(text)
        ack = await peer.call(
            Code.ACK_MESSAGE, consumerGroup="Popping", queueId=receipt.queue_id, extraInfo=text,
            offset=receipt.offset, topic=real_topic(receipt.retry, "Popping", "Popped"),
        )  # fmt: skip
        assert ack.code in {ResponseCode.SUCCESS, _BETWEEN_TERMS}, ack.remark


def _receipt(head: PopResponse, starts: dict[tuple[int, int], int], record: Record) -> Receipt:
    return Receipt(
        starts[0, record.queue_id],
        head.pop_time,
        head.invisible_time,
        head.revive_qid,
        0,
        "broker-a",
        record.queue_id,
        record.queue_offset,
    )


async def _await_later(load: Load, peer: Peer) -> None:
    """Wait until the messages that were to be delivered later are; each comes once."""
    found: list[str] = []
    offset = 0
    while not set(load.later) <= set(found):
        answer = await peer.pull("Later", offset, hold_ms=1000)
        for record in decode_records(answer.body):
            found.append(record.properties["UNIQ_KEY"])
            offset = record.queue_offset + 1
    assert len(found) == len(set(found))


async def _pull_rest(load: Load, peer: Peer) -> None:
    for queue_id, bodies in load.pulled.items():
        while True:
            answer = await peer.pull("T", len(bodies), queueId=queue_id)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                break
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            bodies += [record.body for record in decode_records(answer.body)]

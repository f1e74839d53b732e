"""A workload of transactional messages, with a database of local transactions."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Final

from rocketpost.client import (
    Message,
    ProducerConfig,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from rocketpost.client.admin import AdminClient
from rocketpost.errors import RocketpostError
from rocketpost.testing.workloads.base import RETRY_SECONDS, SETTLE_SECONDS, Workload

COMMIT, ROLLBACK, UNKNOWN = TransactionState
_STREAMS: Final = 4
_UNDECIDED_SHARE: Final = 0.05
_COMMIT_SHARE: Final = 0.7
_ANSWERED_SHARE: Final = 0.7


class Database:
    """Outcomes of local transactions, by transaction id."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.ended: dict[str, TransactionState] = {}
        self.undecided: set[str] = set()
        """Transactions whose outcome neither the producer nor a checker ever learns."""
        self.questions = 0

    async def run(self, message: Message, transaction_id: str) -> TransactionState:
        """Run a local transaction; sometimes its outcome is lost."""
        await asyncio.sleep(self._rng.choice([0, 0, 0.01, 0.3]))
        kind = self._rng.random()
        if kind < _UNDECIDED_SHARE:
            self.undecided.add(transaction_id)
            return UNKNOWN
        state = COMMIT if self._rng.random() < _COMMIT_SHARE else ROLLBACK
        state = self.ended.setdefault(transaction_id, state)  # a checker may have been here first
        return state if kind < _ANSWERED_SHARE else UNKNOWN

    async def look_up(self, message: ReceivedMessage) -> TransactionState:
        """Return the outcome of a local transaction; one that has not run by now never will."""
        self.questions += 1
        if message.message_id in self.undecided or self._rng.random() < 0.1:
            return UNKNOWN
        return self.ended.setdefault(message.message_id, ROLLBACK)

    @property
    def committed(self) -> set[str]:
        """The transactions that committed."""
        return {each for each, state in self.ended.items() if state is COMMIT}

    def find_broken(self, delivered: Counter[str], given_up: set[str]) -> dict[str, set[str]]:
        """Return the transactions with broken promises by kind, when none is pending.

        Args:
            delivered: The number of copies of each message.
            given_up: The transactions that the broker stopped checking and keeps for operators.
        """
        broken = {
            "committed and were lost": self.committed - delivered.keys() - given_up,
            "were forgotten": self.undecided - self.ended.keys() - given_up,
            "were delivered without a commit": delivered.keys() - self.committed,
            "were delivered twice": {each for each, count in delivered.items() if count > 1},
        }
        return {how: keys for how, keys in broken.items() if keys}


class TransactionWorkload(Workload):
    """Runs transactions: a committed message must be delivered once, any other one never."""

    topic = "Transactions"

    async def run(self) -> None:
        """Run several transactions at a time."""
        self._database = Database(self.rng)
        config = ProducerConfig(
            name_servers=self.place.name_servers, send_timeout=5.0, retries=5, route_seconds=1.0
        )
        self._producer = TransactionProducer(
            "transactions", checker=self._database.look_up, topics=[self.topic], config=config
        )
        await self._producer.start()
        await asyncio.gather(*(self._run_stream() for _ in range(_STREAMS)))

    async def settle(self) -> None:
        """Wait until no transaction is pending, and compare."""
        try:
            async with AdminClient(name_servers=self.place.name_servers) as admin:
                if not await self._wait_until_none_pending(admin):
                    return
                given_up = {half.id async for half in admin.transactions.discarded()}
            records = await self.place.read_topic(self.topic, self.queue_count)
            delivered = Counter(record.properties["UNIQ_KEY"] for record in records)
            for how, keys in self._database.find_broken(delivered, given_up).items():
                self.complain_of(how, keys)
        finally:
            await self._producer.stop()

    def __str__(self) -> str:
        database = self._database
        return (
            f"{super().__str__()}, {len(database.committed)} of {len(database.ended)} committed, "
            f"{database.questions} questions"
        )

    async def _run_stream(self) -> None:
        while True:
            key = self.next_key()
            try:
                await self._producer.send_in_transaction(
                    Message(self.topic, key.encode()), self._database.run
                )
            except RocketpostError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self.acknowledged.add(key)
                await self.rest(0)

    async def _wait_until_none_pending(self, admin: AdminClient) -> bool:
        pending = "unknown"
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while pending != "0":
                    values = await admin.brokers.runtime(self.place.address)
                    pending = values["transactionsPending"]
                    await asyncio.sleep(0.2)
        except TimeoutError:
            self.place.complain(f"{self.topic}: {pending} transactions are pending for ever")
            return False
        return True

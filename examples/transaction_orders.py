"""Book orders in a database and announce each by a message: both happen, or neither.

python examples/transaction_orders.py book 10         books ten orders
python examples/transaction_orders.py answer 60       only answers brokers' questions, for 60 s

The database is the SQLite file orders.db, or what ORDERS_DATABASE names: another file, or
postgresql://... (needs ``pip install psycopg``). NAMESRV_ADDR is 127.0.0.1:9876 if not set.

The id of each message's transaction is stored in the same database transaction as the order. When a
program dies between the two commits, the broker asks any other that runs, and that one looks the id
up. It does not only look: an id that is not there is stored as rolled back. Should the database
transaction still be about to commit somewhere, it fails on that row, so that the answer stays true.
"""

import contextlib
import os
import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from rocketpost.client import Message, ReceivedMessage, TransactionState
from rocketpost.client.blocking import TransactionProducer

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
DATABASE = os.environ.get("ORDERS_DATABASE", "orders.db")
TOPIC = "ExampleOrders"

TABLES = (
    "CREATE TABLE IF NOT EXISTS orders (name VARCHAR(80) PRIMARY KEY, amount INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS transactions (id VARCHAR(80) PRIMARY KEY, state VARCHAR(12))",
)


class Orders:
    """The database, of either kind. Every call has a connection of its own."""

    def __init__(self, url: str = DATABASE) -> None:
        self._url = url
        self._mark = "%s" if url.startswith("postgresql://") else "?"
        with self._transaction() as run:
            for table in TABLES:
                run(table)

    def book(self, message: Message, transaction_id: str) -> TransactionState:
        """Book an order; this is the local transaction."""
        name, _, amount = bytes(message.body).decode().partition(" ")
        with self._transaction() as run:
            # Fails if a checker was here first; then the order is not booked either.
            run("INSERT INTO transactions VALUES (?, 'committed')", transaction_id)
            run("INSERT INTO orders VALUES (?, ?)", name, int(amount))
        return TransactionState.COMMIT

    def look_up(self, message: ReceivedMessage) -> TransactionState:
        """Decide what became of a local transaction; this is the checker."""
        id_ = message.message_id
        with self._transaction() as run:
            run("INSERT INTO transactions VALUES (?, 'rolled back') ON CONFLICT DO NOTHING", id_)
            [(state,)] = run("SELECT state FROM transactions WHERE id = ?", id_)
        print(f"asked about {id_}: {state}", flush=True)
        return TransactionState.COMMIT if state == "committed" else TransactionState.ROLLBACK

    def names(self) -> list[str]:
        """Return the orders that are booked."""
        with self._transaction() as run:
            return sorted(name for (name,) in run("SELECT name FROM orders"))

    def connect(self) -> Any:
        """Return a new connection."""
        if not self._url.startswith("postgresql://"):
            return sqlite3.connect(self._url, timeout=30)
        import psycopg

        return psycopg.connect(self._url)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Yield a function that runs statements, all of them in one transaction."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()

            def run(statement: str, *values: object) -> list[Any]:
                cursor.execute(statement.replace("?", self._mark), values)
                return cursor.fetchall() if cursor.description else []

            yield run
            connection.commit()


def main(mode: str, number: int) -> None:
    orders = Orders()
    with TransactionProducer(
        "example-orders", checker=orders.look_up, topics=[TOPIC], name_servers=NAME_SERVERS
    ) as producer:
        if mode == "answer":
            time.sleep(number)
            return
        for _ in range(number):
            name = f"order-{random.randrange(10**12)}"
            message = Message(TOPIC, f"{name} {random.randrange(1, 100)}".encode(), keys=name)
            result = producer.send_in_transaction(message, orders.book)
            print(f"{name}: {result.state.name}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1] if len(sys.argv) > 1 else "book", int((*sys.argv[1:], "10", "10")[1]))

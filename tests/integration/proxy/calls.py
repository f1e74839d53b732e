"""Brokers with a gRPC port, in the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rocketpost.model.topic import TopicChange
from rocketpost.proxy.settings import read_proxy_settings
from rocketpost.server.proxy.broker import ProxiedBroker
from rocketpost.testing.proxy.client import Client, message, receive_request

__all__ = ["SMALL", "Client", "create_topic", "message", "proxied_broker", "receive_request"]

SMALL = {"mappedFileSizeCommitLog": "4194304", "maxMessageSize": "1048576"}


@asynccontextmanager
async def proxied_broker(
    directory: Path, *, proxy: str = "{}", topics: dict[str, str] | None = None, **settings: str
) -> AsyncIterator[ProxiedBroker]:
    """Run a broker with a gRPC port.

    Args:
        directory: The directory of its store.
        proxy: The settings of the port, in JSON.
        topics: Topics to create, with their types.
        settings: More settings of the broker.
    """
    config, _ = read_proxy_settings(
        proxy.replace("{", '{"grpcServerPort": 0, ', 1).replace(", }", "}")
    )
    values = {
        "brokerName": "broker-a",
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(directory),
        **SMALL,
        **settings,
    }
    broker = ProxiedBroker(values, proxy=config)
    await broker.start()
    try:
        for name, kind in (topics or {}).items():
            create_topic(broker, name, kind)
        yield broker
    finally:
        await broker.stop()


def create_topic(broker: ProxiedBroker, name: str, kind: str, *, queues: int = 4) -> None:
    """Create a topic of a type."""
    attributes = {"+message.type": kind} if kind else {}
    broker._context.tables.topics.update(
        TopicChange(
            topic_name=name,
            attributes=attributes,
            read_queue_nums=queues,
            write_queue_nums=queues,
        )
    )

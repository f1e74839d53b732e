"""Pytest fixtures: real servers for the session, a fresh topic and group, simulated clusters.

pytest finds them wherever rocketpost is installed. The servers are processes on free ports of this
machine, with data below pytest's temporary directory, and are killed at the end of the session.
``docs/guide/testing.md`` and ``docs/guide/simulation.md`` have examples.

**Invariant:** importing this module imports nothing else of rocketpost: pytest imports it in every
run, also of projects that use no fixture of it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rocketpost.client.admin import AdminClient as AsyncAdminClient
    from rocketpost.testing.cluster import Cluster
    from rocketpost.testing.sim.cluster import SimulatedCluster

QUEUES = 4


@pytest.fixture(scope="session")
def rocketmq_settings() -> Mapping[str, str]:
    """Properties of the broker, by RocketMQ's keys; override this fixture to set some."""
    return {}


@pytest.fixture(scope="session")
def rocketmq_cluster(
    tmp_path_factory: pytest.TempPathFactory, rocketmq_settings: Mapping[str, str]
) -> Iterator[Cluster]:
    """A name server and a broker, shared by all tests of the session."""
    from rocketpost.testing.cluster import Cluster

    directory = tmp_path_factory.mktemp("rocketmq")
    with Cluster(directory, settings=rocketmq_settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rocketmq_name_servers(rocketmq_cluster: Cluster) -> str:
    """The addresses of the name servers, as clients accept them: ``host:port;host:port``."""
    return rocketmq_cluster.addresses


@pytest.fixture
def rocketmq_topic(request: pytest.FixtureRequest, rocketmq_cluster: Cluster) -> Iterator[str]:
    """A topic of four queues that no other test has; deleted afterwards."""
    from rocketpost.client.blocking import AdminClient
    from rocketpost.model.topic import TopicConfig

    topic = _fresh_name(request)
    addresses = rocketmq_cluster.broker_addresses
    config = TopicConfig(topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)

    async def create(admin: AsyncAdminClient) -> None:
        for address in addresses:
            await admin.topics.create(address, config)

    with AdminClient(name_servers=rocketmq_cluster.addresses) as admin:
        admin.call(create)
        yield topic
        if all(broker.is_running for broker in rocketmq_cluster.brokers):
            admin.call(lambda a: a.topics.delete(topic, addresses))


@pytest.fixture
def rocketmq_group(request: pytest.FixtureRequest) -> str:
    """The name of a group that no other test has."""
    return _fresh_name(request)


@pytest.fixture
def rocketmq_simulation() -> Iterator[Callable[..., SimulatedCluster]]:
    """A function that opens a ``SimulatedCluster``, which is closed at the end of the test."""
    from rocketpost.testing.sim.cluster import SimulatedCluster

    with ExitStack() as stack:

        def open_cluster(**options: Any) -> SimulatedCluster:
            return stack.enter_context(SimulatedCluster(**options))

        yield open_cluster


def _fresh_name(request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", request.node.name)[:40]
    return f"{name}-{uuid.uuid4().hex[:8]}"

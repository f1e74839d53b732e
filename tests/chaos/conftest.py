"""Seeds and lengths of campaigns: ``pytest tests/chaos --seed N --rounds N --schedules N``."""

from __future__ import annotations

import contextlib
import os
import random

import pytest

ROUNDS_DEFAULT = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # the simulations have it too
        parser.addoption("--seed", type=int, default=None, help="run from this seed")
    parser.addoption(
        "--rounds", type=int, default=ROUNDS_DEFAULT, help="how often each campaign kills a broker"
    )
    parser.addoption(
        "--schedules", type=int, default=100_000, help="how many simulated Raft groups are run"
    )
    parser.addoption(
        "--group-seeds", type=int, default=10_000, help="how many groups on simulated disks are run"
    )
    parser.addoption(
        "--cluster-seeds", type=int, default=1000, help="how many simulated clusters are run"
    )
    parser.addoption(
        "--processes", type=int, default=os.cpu_count(), help="how many processes run simulations"
    )
    parser.addoption(
        "--spark-messages", type=int, default=20_000, help="messages of the campaign with Spark"
    )
    parser.addoption(
        "--spark-kills", type=int, default=12, help="how often that one kills a process"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "chaos" in item.path.parts:
            item.add_marker(pytest.mark.chaos)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run, printed so that a failure can be repeated."""
    given = request.config.getoption("--seed")
    seed = random.SystemRandom().randrange(1_000_000) if given is None else int(given)
    print(f"--seed {seed}")
    return seed


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--rounds"))


@pytest.fixture
def schedules(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--schedules"))


@pytest.fixture
def group_seeds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--group-seeds"))


@pytest.fixture
def cluster_seeds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--cluster-seeds"))


@pytest.fixture
def processes(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--processes"))


@pytest.fixture
def spark_messages(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--spark-messages"))


@pytest.fixture
def spark_kills(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--spark-kills"))

"""The sharing of tests between processes, their time limits, and the option for trace files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

TOGETHER = ("tests/integration/spark/", "tests/tidy/")
"""Directories whose tests share something that is dear to make: a Spark session, all sources."""
LONG_SECONDS = 3600
FOREIGN_SECONDS = 900

# Tests of one directory may use helpers of another, whichever is collected.
sys.path.append(str(Path(__file__).parent))

# A busy machine makes any example slow; only ``timeout`` limits the time of a test.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


class SharedScopes(LoadFileScheduling):
    """Keeps the tests of one file together, and those of some directories."""

    def _split_scope(self, nodeid: str) -> str:
        folder = next((each for each in TOGETHER if nodeid.startswith(each)), None)
        return folder if folder is not None else super()._split_scope(nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what happens into the trace files, instead of comparing it",
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether trace files are to be written."""
    return bool(request.config.getoption("--rewrite"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return SharedScopes(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give campaigns and foreign programs more time than the ``timeout`` of other tests."""
    for item in items:
        if item.get_closest_marker("timeout") is not None:
            continue
        if item.get_closest_marker("long") is not None or "tests/chaos/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))
        elif "tests/interop/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(FOREIGN_SECONDS))

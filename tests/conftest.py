"""The sharing of tests between processes, their time limits, and the option for trace files.

Secrets of tests are searched for in all log lines, in what servers print, and, after all tests, in
all files that they have left.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SPARK = "tests/integration/spark/"
TOGETHER = (f"{SPARK}test_[a-b]", SPARK, "tests/tidy/")
"""Patterns of files whose tests share something dear: a Spark session, all sources.

Two processes have a session: with one, its tests alone took as long as all others.
"""
LONG_SECONDS = 3600
FOREIGN_SECONDS = 900

# Tests of one directory may use helpers of another, whichever is collected.
sys.path.append(str(Path(__file__).parent))

from leaked_secrets import SecretWatch, find_leaks  # noqa: E402 - the path comes first
from rocketpost.testing.process import ServerProcess  # noqa: E402 - as the other

WATCH = SecretWatch()
LEAKS: list[str] = []
"""Files of this process's tests that have a secret, or of all processes."""

# A busy machine makes any example slow; only ``timeout`` limits the time of a test.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


class TextsOfErrors(logging.Handler):
    """Replaces the errors in log records by their texts.

    pytest keeps all records of a test, an error keeps the frames that it passed, and these keep a
    simulated cluster alive: gigabytes in a test that breaks thousands of them.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple):
            record.args = tuple(
                str(each) if isinstance(each, BaseException) else each for each in record.args
            )
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None


class SharedScopes(LoadFileScheduling):
    """Keeps the tests of one file together, and those of some directories."""

    def _split_scope(self, nodeid: str) -> str:
        found = next((each for each in TOGETHER if re.match(each, nodeid)), None)
        return found if found is not None else super()._split_scope(nodeid)


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


def pytest_configure(config: pytest.Config) -> None:
    """Look at every log line from now on, and at what server processes have printed."""
    logging.getLogger("rocketpost").addHandler(WATCH)
    logging.getLogger("rocketpost").addHandler(TextsOfErrors())
    reap = ServerProcess._reap

    def look_and_reap(server: ServerProcess) -> None:
        reap(server)
        WATCH.look_at("\n".join(server.output))

    ServerProcess._reap = look_and_reap  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test whose servers have logged a secret."""
    yield
    if WATCH.found:
        found, WATCH.found = WATCH.found, []
        pytest.fail("a secret was logged: " + "; ".join(found))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Take what another process has found in the files of its tests."""
    LEAKS.extend(getattr(node, "workeroutput", {}).get("leaks", ()))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Search the files that the tests of this process have left; fail if any has a secret."""
    config = session.config
    factory = getattr(config, "_tmp_path_factory", None)
    has_workers = getattr(config.option, "dist", "no") != "no"
    if factory is not None and (not has_workers or hasattr(config, "workerinput")):
        LEAKS.extend(find_leaks(factory.getbasetemp()))
    if hasattr(config, "workeroutput"):
        config.workeroutput["leaks"] = LEAKS  # the process that started this one reports them
    elif LEAKS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print("\nsecrets in files:", *LEAKS, sep="\n  ", file=sys.stderr)

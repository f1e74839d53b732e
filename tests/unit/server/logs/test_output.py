from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.log_limit import LimitRepetition
from rocketpost.server.logs.output import LogFile, apply_levels, open_log_blocking
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.logs import LogConfig
from rocketpost.server.settings.namesrv import NamesrvConfig

NAME = "rocketpost.server.logs.output"
KINDS = [BrokerConfig, NamesrvConfig]


@pytest.fixture(autouse=True)
def own_root() -> Iterator[None]:
    """Give the root logger back its level, and close the files that were opened."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in [each for each in root.handlers if isinstance(each, RotatingFileHandler)]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    apply_levels("INFO")


def open_log(config: LogConfig, *, label: str = "") -> LimitRepetition:
    """Open a log although the test runner has handlers of its own."""
    root = logging.getLogger()
    others = root.handlers[:]
    root.handlers.clear()
    try:
        return open_log_blocking(config, label=label)
    finally:
        root.handlers += others


def lines_of(path: Path) -> list[str]:
    for handler in logging.getLogger().handlers:
        handler.flush()
    return path.read_text().splitlines()


@pytest.mark.parametrize("is_recreated", [True, False])
def test_a_file_that_was_moved_is_opened_again(tmp_path: Path, is_recreated: bool) -> None:
    path, moved = tmp_path / "broker.log", tmp_path / "broker.log.old"
    open_log(BrokerConfig(log_file=str(path)))
    logger = logging.getLogger(NAME)
    logger.error("first")
    path.rename(moved)
    if is_recreated:
        path.touch()
    logger.error("second")
    logger.error("third")
    assert [line.rpartition(" ")[2] for line in lines_of(moved)] == ["first"]
    assert [line.rpartition(" ")[2] for line in lines_of(path)] == ["second", "third"]


def test_lines_are_written_again_once_the_directory_is_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logs" / "broker.log"
    open_log(BrokerConfig(log_file=str(path)))
    logger = logging.getLogger(NAME)
    path.parent.rename(tmp_path / "moved")
    logger.error("lost")
    assert "No such file or directory" in capsys.readouterr().err
    path.parent.mkdir()
    logger.error("second")
    assert [line.rpartition(" ")[2] for line in lines_of(path)] == ["second"]


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_file_that_was_moved_on_a_full_disk_is_opened_again(
    tmp_path: Path, is_closed: bool
) -> None:
    path = tmp_path / "broker.log"
    open_log(BrokerConfig(log_file=str(path)))
    (handler,) = (each for each in logging.getLogger().handlers if isinstance(each, LogFile))
    handler.stream.close()
    full = handler.stream = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    full.write("not taken")
    if is_closed:  # as after a failed change of files
        with pytest.raises(OSError, match="No space left"):
            full.close()
    logger = logging.getLogger(NAME)
    logger.error("first")
    logger.error("second")
    assert full.closed
    assert [line.rpartition(" ")[2] for line in lines_of(path)] == ["first", "second"]


@pytest.mark.parametrize("kind", KINDS)
def test_logFileBytes_and_logFileCount(tmp_path: Path, kind: type[LogConfig]) -> None:
    path = tmp_path / "logs" / "broker.log"
    config = kind(log_file=str(path), log_file_bytes=64 * 1024, log_file_count=2)
    limit = open_log(config)
    logger = logging.getLogger(NAME)
    for number in range(80):
        logger.error("event %s: text=%s", number, "x" * 3000)
        limit.flush()
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "broker.log",
        "broker.log.1",
        "broker.log.2",
    ]
    assert all(each.stat().st_size <= 64 * 1024 for each in path.parent.iterdir())
    assert "event 79" in lines_of(path)[-1]


def test_each_server_of_a_command_has_a_file_of_its_own(tmp_path: Path) -> None:
    open_log(LogConfig(log_file=str(tmp_path / "b.log")), label="broker-2")
    logging.getLogger(NAME).info("hello")
    (line,) = lines_of(tmp_path / "b-broker-2.log")
    assert line.endswith(f"INFO {NAME} hello")


@pytest.mark.parametrize("kind", KINDS)
def test_logFormat(tmp_path: Path, kind: type[LogConfig]) -> None:
    path = tmp_path / "b.log"
    open_log(kind(log_file=str(path), log_format="json"), label="")
    logging.getLogger(NAME).info("started: port=%s", 9876)
    (line,) = lines_of(path)
    found = json.loads(line)
    assert (found["event"], found["port"]) == ("started", 9876)


@pytest.mark.parametrize("kind", KINDS)
def test_logFile(tmp_path: Path, kind: type[LogConfig]) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "b.log"
    with pytest.raises(ConfigError, match=r"logFile=.* cannot be written"):
        open_log(kind(log_file=str(path)))


def test_levels_change_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "b.log"
    open_log(LogConfig(log_file=str(path)))
    logger, other = logging.getLogger(NAME), logging.getLogger("rocketpost.other")
    logger.debug("one")
    apply_levels(f"WARNING,{NAME}=DEBUG")
    logger.debug("two")
    other.info("three")
    apply_levels("INFO")  # the logger that was named before follows the others again
    logger.debug("four")
    other.info("five")
    assert [line.split()[-1] for line in lines_of(path)] == ["two", "five"]


@pytest.mark.parametrize("kind", KINDS)
def test_logLevel(tmp_path: Path, kind: type[LogConfig]) -> None:
    path = tmp_path / "b.log"
    open_log(kind(log_file=str(path), log_level=f"ERROR,{NAME}=DEBUG"))
    logging.getLogger("rocketpost.other").warning("one")
    logging.getLogger(NAME).debug("two")
    assert [line.split()[-1] for line in lines_of(path)] == ["two"]

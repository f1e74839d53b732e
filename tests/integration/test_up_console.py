"""``rocketpost up --console``: the console comes and goes with the servers."""

from __future__ import annotations

import http.client
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rocketpost.console.child import ConsoleChild
from rocketpost.errors import ConfigError
from rocketpost.testing.process import ServerProcess
from rocketpost.testing.waiting import until

from .console_client import PROGRAM, READY


def answers(url: str) -> bool:
    """Tell whether a console is there."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request("GET", "/login")
        return connection.getresponse().status == 200
    except ConnectionError:
        return False
    finally:
        connection.close()


@pytest.mark.slow
async def test_the_console_comes_and_goes_with_the_servers(tmp_path: Path) -> None:
    words = ["up", "--data", str(tmp_path), "--namesrv-port", "0", "--broker-port", "0"]
    words += ["--console", "--console-port", "0", "--segment-size", "8M"]
    process = ServerProcess(words, ready=READY, program=PROGRAM)
    process.launch()
    try:
        url = process.wait_ready()["url"]
        process.wait_for(r"/invitation\?token=\S+", seconds=10)
        assert answers(url)
        process.kill()  # a killed parent cannot say good-bye: the pipe does
        await until(lambda: not answers(url))
    finally:
        process.stop()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketpost.console.child._NEEDED", ("no_such_package",))
    with pytest.raises(ConfigError, match=r"no_such_package.*rocketpost\[console\]"):
        ConsoleChild.check_installed()

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.client.tls import ENABLE, FILE
from rocketpost.errors import ConfigError
from rocketpost.spark.options import SourceOptions, parse_options
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.tls_options import find_tls, with_tls
from rocketpost.transport.tls_contexts import ClientTls

BASE = {"nameServer": "localhost:9876", "topic": "T"}
KINDS = [SourceOptions, SinkOptions]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "tls.properties"
    path.write_text("tls.client.authServer=false\n")
    return str(path)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENABLE, raising=False)
    monkeypatch.delenv(FILE, raising=False)


@pytest.mark.parametrize("kind", KINDS)
def test_options_turn_tls_on(kind: type[SourceOptions | SinkOptions], file: str) -> None:
    assert find_tls(parse_options(kind, BASE)) is None
    assert find_tls(parse_options(kind, {**BASE, "tls": "true"})) == ClientTls()
    given = parse_options(kind, {**BASE, "tls": "true", "tlsConfigFile": file})
    assert find_tls(given) == ClientTls(check_server=False)
    assert with_tls(given) == given


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_get_the_tls_of_the_drivers_environment(
    kind: type[SourceOptions | SinkOptions], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENABLE, "true")
    monkeypatch.setenv(FILE, file)
    options = with_tls(parse_options(kind, BASE))
    plain = parse_options(kind, {**BASE, "tls": "false"})
    monkeypatch.delenv(ENABLE)
    assert find_tls(options) == ClientTls(check_server=False)
    assert find_tls(plain) is None, "an option counts more than the environment"


@pytest.mark.parametrize("kind", KINDS)
def test_mistakes_are_found_by_the_driver(kind: type[SourceOptions | SinkOptions]) -> None:
    with pytest.raises(ConfigError, match="tlsConfigFile needs tls=true"):
        parse_options(kind, {**BASE, "tlsConfigFile": "/x"})
    with pytest.raises(ConfigError, match="cannot read the TLS settings /nowhere"):
        with_tls(parse_options(kind, {**BASE, "tls": "true", "tlsConfigFile": "/nowhere"}))

"""Files that the console needs are tried before it says that it is ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.console.config import ConsoleConfig
from rocketpost.console.server import (
    check_state_blocking,
    make_server_blocking,
    make_services_blocking,
)
from rocketpost.errors import ConfigError

NS = ("127.0.0.1:9876",)


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    file, missing = tmp_path / "file.pem", tmp_path / "missing.pem"
    file.write_text("no certificate")
    for certificate, key, reason in (
        (missing, file, f"cannot read {missing}: No such file"),
        (file, missing, f"cannot read {missing}: No such file"),
        (file, file, f"--tls-cert {file} and --tls-key {file} cannot be used: "),
    ):
        config = ConsoleConfig(
            clusters=NS, state=tmp_path / "state", certificate=certificate, key=key
        )
        with pytest.raises(ConfigError) as caught:
            make_server_blocking(make_services_blocking(config))
        assert str(caught.value).startswith(reason)


def test_a_state_directory_without_room_for_files_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "a" / "b"
    check_state_blocking(ConsoleConfig(clusters=NS, state=state))
    assert list(state.iterdir()) == []
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file" / "below", Path("/proc/below")):
        with pytest.raises(ConfigError, match=f"cannot be saved in {wrong}: .*--state"):
            check_state_blocking(ConsoleConfig(clusters=NS, state=wrong))

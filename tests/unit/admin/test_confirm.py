from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result

from rocketpost.admin import confirm as confirm_module
from rocketpost.admin.command import admin_command, say
from rocketpost.admin.confirm import confirm, yes_option
from rocketpost.client.admin import AdminClient


@admin_command("drop")
@click.option("--loss", "losses", multiple=True)
@yes_option
async def drop(admin: AdminClient, *, losses: tuple[str, ...], yes: bool) -> None:
    """Drop something."""
    await confirm(losses, yes=yes)
    say("dropped")


def run(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(drop, ["-n", "127.0.0.1:1", *words], input=typed)


def test_where_nothing_is_lost_nobody_is_asked() -> None:
    assert run().stdout == "dropped\n"


def test_without_a_terminal_and_without_yes_nothing_is_done() -> None:
    result = run("--loss", "this hurts", "--loss", "and this")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "mqadmin: nothing was changed: this hurts; and this. Add --yes to do it anyway\n"
    )


def test_yes_shows_the_loss_and_continues() -> None:
    result = run("--loss", "this hurts", "--yes")
    assert (result.exit_code, result.stdout) == (0, "dropped\n")
    assert result.stderr == "note: this hurts\n"


@pytest.mark.parametrize(("typed", "status"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_somebody_at_a_terminal_is_asked(
    monkeypatch: pytest.MonkeyPatch, typed: str, status: int
) -> None:
    monkeypatch.setattr(confirm_module, "_is_terminal", lambda: True)
    result = run("--loss", "this hurts", typed=typed)
    assert result.exit_code == status
    assert "  this hurts\nDo it? [y/N]:" in result.stderr
    assert result.stdout.endswith("dropped\n") == (status == 0)

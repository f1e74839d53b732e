"""Results and failures of commands, as a terminal or a pipe gets them."""

from __future__ import annotations

from typing import Any

import click


class Failure(click.ClickException):
    """The failure of a command; the text says why, and what to do."""

    def show(self, file: Any = None) -> None:
        """Print one line on stderr."""
        click.echo(f"mqadmin: {self.message}", err=True, file=file)


def say(text: str = "", *, nl: bool = True) -> None:
    """Print a line of the result."""
    click.echo(text, nl=nl)

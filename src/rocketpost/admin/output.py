"""Results and failures of commands, as a terminal or a pipe gets them."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import click


class Failure(click.ClickException):
    """The failure of a command; the text says why, and what to do."""

    def show(self, file: Any = None) -> None:
        """Print one line on stderr."""
        click.echo(f"mqadmin: {self.message}", err=True, file=file)


class CannotPrint(Failure):
    """The output takes no more text, for example because a disk is full."""


def say(text: str = "", *, nl: bool = True) -> None:
    """Print a line of the result.

    Raises:
        CannotPrint: The output is full. A closed pipe is an ``OSError``, and ends the command.
    """
    try:
        click.echo(text, nl=nl)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        # Python writes the rest of the text again when it exits, which would print a stack trace.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        raise CannotPrint(f"cannot write the output: {error.strerror}") from error

"""Confirmation before something is lost: a question on a terminal, ``--yes`` in scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from rocketpost.admin.command import Failure

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(function: F) -> F:
    """Add ``--yes``."""
    return click.option(
        "--yes", "yes", is_flag=True, help="Do it even if something is lost or hidden; for scripts."
    )(function)


async def confirm(losses: Sequence[str], *, yes: bool) -> None:
    """Print the losses that a command causes, and return if the user agrees or there are none.

    Raises:
        Failure: The user does not agree, or cannot be asked. Nothing may be changed.
    """
    if not losses:
        return
    if yes:
        for loss in losses:
            click.echo(f"note: {loss}", err=True)
    elif not _is_terminal():
        raise Failure(f"nothing was changed: {'; '.join(losses)}. Add --yes to do it anyway")
    elif not await asyncio.to_thread(_ask_blocking, losses):
        raise Failure("nothing was changed")


def _is_terminal() -> bool:
    """Return whether somebody is there to answer."""
    return sys.stdin.isatty()


def _ask_blocking(losses: Sequence[str]) -> bool:
    for loss in losses:
        click.echo(f"  {loss}", err=True)
    try:
        return click.confirm("Do it?", err=True)
    except click.Abort:
        click.echo(err=True)
        return False

"""Tests written as text: commands to a state machine, and what it does after each of them.

A trace file has blocks, and a blank line between two of them. A block is a command, a line of
dashes, and what the command leads to:

    # A comment says what the next commands show.
    send a delay=50
    ----
    stored: timer topic 0, a, due +50

The first word of a command is its name. Words with ``=`` in them are options, the others are
arguments. A test that follows a file with :func:`run_trace` fails with the difference; it can also
write what happens into the file, for a reader to check with ``git diff``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

SEPARATOR: Final = "----"


class TraceCommand(NamedTuple):
    """One command of a trace file."""

    name: str
    args: list[str]
    options: dict[str, str]

    def option_int(self, name: str, default: int) -> int:
        """Return an option that is a number."""
        return int(self.options.get(name, default))


Run = Callable[[TraceCommand], Iterable[str]]
"""Runs a command and returns the lines that tell what it led to."""


class _Block(NamedTuple):
    comments: list[str]
    command: str
    expected: list[str]


def run_trace(path: Path, run: Run, *, rewrite: bool = False) -> None:
    """Run the commands of a file, one after the other.

    Args:
        path: The file.
        run: Runs one command.
        rewrite: Whether to write what happened into the file instead of comparing it.

    Raises:
        AssertionError: Something else happened than the file says.
        ValueError: The file is no trace.
    """
    text = path.read_text()
    blocks = list(_blocks(text))
    if not blocks:
        raise ValueError(f"{path.name} has no command")
    happened = [
        block._replace(expected=list(run(parse_command(block.command)))) for block in blocks
    ]
    written = "\n".join(_format(block) for block in happened)
    if rewrite:
        path.write_text(written)
    elif written != text:
        lines = difflib.unified_diff(
            text.splitlines(), written.splitlines(), "expected", "happened", lineterm="", n=8
        )
        raise AssertionError(f"{path.name} tells something else:\n" + "\n".join(lines))


def parse_command(line: str) -> TraceCommand:
    """Return a command from its line."""
    name, *words = line.split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    return TraceCommand(name, [word for word in words if "=" not in word], options)


def _blocks(text: str) -> Iterator[_Block]:
    for chunk in text.strip("\n").split("\n\n"):
        lines = chunk.strip("\n").split("\n")
        comments = [line for line in lines if line.startswith("#")]
        rest = lines[len(comments) :]
        if not rest:
            raise ValueError(f"a comment without a command: {comments}")
        if len(rest) < 2 or rest[1] != SEPARATOR:
            raise ValueError(f"no line {SEPARATOR} after the command {rest[0]!r}")
        yield _Block(comments, rest[0], rest[2:])


def _format(block: _Block) -> str:
    assert not any(line == "" for line in block.expected), "a blank line ends a block"
    return "\n".join([*block.comments, block.command, SEPARATOR, *block.expected, ""])

"""The command ``mqadmin``: RocketMQ's administration tool.

Command names are RocketMQ's and ignore case. A command of RocketMQ that is not here is refused with
the reason. The modules of commands are imported when they are used (``admin.catalog``).
"""

from __future__ import annotations

import difflib
from typing import Any, Final

import click
import click.shell_completion

from rocketpost import VERSION
from rocketpost.admin.absent import ABSENT
from rocketpost.admin.catalog import LazyCommands
from rocketpost.admin.output import Failure, say

_LISTED: Final = "   {name:<35} {text}"


class WrongCommandLine(Failure):
    """The command line is wrong."""

    exit_code = 2


class Commands(click.Group):
    """Commands whose names ignore case, and whose errors take one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._known = LazyCommands()
        self.commands = self._known

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name in any case."""
        lower = cmd_name.lower()
        return next((self.commands[name] for name in self.commands if name.lower() == lower), None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is named on the command line.

        Raises:
            WrongCommandLine: There is no such command.
        """
        command = self.get_command(ctx, args[0])
        if command is None:
            raise WrongCommandLine(self.describe_unknown(args[0]))
        return command.name, command, args[1:]

    def describe_unknown(self, name: str) -> str:
        """Return the message for a command that does not exist."""
        absent = ABSENT.get(name.lower())
        if absent is not None:
            return f"{absent.name} is not in Rocketpost: {absent.reason}"
        known = {each.lower(): each for each in self.commands}
        near = difflib.get_close_matches(name.lower(), known, n=3)
        hint = f"did you mean {', '.join(known[each] for each in near)}?" if near else ""
        hint = hint or "`mqadmin` without arguments lists all commands"
        return f"there is no command {name}; {hint}"

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; report a wrong command line in one line.

        Raises:
            WrongCommandLine: The command line is wrong.
        """
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            where = error.ctx.command.name if error.ctx else None
            see = f"`mqadmin help {where}`" if where != self.name else "`mqadmin -h`"
            text = error.format_message().rstrip(".")
            raise WrongCommandLine(f"{text[:1].lower()}{text[1:]}; see {see}") from error

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Return the commands that begin with a text; they are not imported."""
        lower = incomplete.lower()
        return [
            click.shell_completion.CompletionItem(name, help=self._known.text(name))
            for name in self._known
            if name.lower().startswith(lower)
        ]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        formatter.write(self.list_text() + "\n")

    def list_text(self) -> str:
        """Return the list of commands in RocketMQ's layout."""
        lines = [_LISTED.format(name=name, text=self._known.text(name)) for name in self._known]
        return "\n".join(
            [
                "The most commonly used mqadmin commands are:",
                "",
                *lines,
                "",
                "See 'mqadmin help <command>' for more information on a specific command.",
            ]
        )


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(VERSION, "-V", "--version", prog_name="mqadmin of Rocketpost")
@click.pass_context
def mqadmin(context: click.Context) -> None:
    """Administer name servers, brokers, topics, groups and messages."""
    if context.invoked_subcommand is None:
        say(context.get_help())


@mqadmin.command("help")
@click.argument("name", metavar="COMMAND", required=False)
@click.pass_context
def show_help(context: click.Context, name: str | None) -> None:
    """Show the options of a command."""
    parent = context.parent
    assert parent is not None
    assert isinstance(parent.command, Commands)
    if name is None:
        say(parent.get_help())
        return
    command = parent.command.get_command(parent, name)
    if command is None:
        raise WrongCommandLine(parent.command.describe_unknown(name))
    with click.Context(command, info_name=command.name, parent=parent) as inner:
        say(command.get_help(inner))

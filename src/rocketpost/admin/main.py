"""The command ``mqadmin``: RocketMQ's administration tool.

Command names are RocketMQ's and ignore case. A command of RocketMQ that this version lacks is
refused with a message that says so.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

import click

from rocketpost import VERSION
from rocketpost.admin import access_commands
from rocketpost.admin.command import Failure, say
from rocketpost.admin.commands import (
    broker,
    cleaning,
    cluster,
    consumer,
    consumer_status,
    dead_letter,
    explain,
    filter,
    group,
    message,
    monitoring,
    namesrv,
    offset,
    producers,
    reading,
    replication,
    sending,
    stats,
    topic,
    topic_view,
    trace,
    transaction,
)

_LISTED: Final = "   {name:<35} {text}"

ABSENT: Final[Mapping[str, str]] = {
    name.lower(): name
    for names in (
        # Static topics, compaction, round trips.
        "updateStaticTopic remappingStaticTopic",
        "dumpCompactionLog clusterRT",
        # Controllers, broker containers.
        "getControllerConfig updateControllerConfig cleanBrokerMetadata",
        "addBroker removeBroker",
        # Cold data, exports, RocksDB.
        "getColdDataFlowCtrInfo updateColdDataFlowCtrGroupConfig",
        "removeColdDataFlowCtrGroupConfig setCommitLogReadAheadMode exportConfigs exportMetrics",
        "exportMetadata exportMetadataInRocksDB rocksDBConfigToJson exportPopRecord",
        "checkRocksdbCqWriteProgress",
        # The access control before RocketMQ 5.3; createUser and createAcl take its place.
        "updateAclConfig deleteAclConfig clusterAclConfigVersion updateGlobalWhiteAddr",
        "getAclConfig",
    )
    for name in names.split()
}
"""Commands of RocketMQ that are not in this version, by their names in lower case."""


class WrongCommandLine(Failure):
    """The command line is wrong."""

    exit_code = 2


class Commands(click.Group):
    """Commands whose names ignore case, and whose errors take one line."""

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
        if name.lower() in ABSENT:
            return f"the command {ABSENT[name.lower()]} is not in this version of Rocketpost"
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

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        formatter.write(self.list_text() + "\n")

    def list_text(self) -> str:
        """Return the list of commands in RocketMQ's layout."""
        lines = [
            _LISTED.format(name=name, text=command.get_short_help_str(80))
            for name, command in self.commands.items()
        ]
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


for _module in (
    topic,
    topic_view,
    group,
    consumer,
    consumer_status,
    monitoring,
    offset,
    stats,
    message,
    reading,
    sending,
    explain,
    filter,
    trace,
    dead_letter,
    transaction,
    cluster,
    broker,
    replication,
    cleaning,
    producers,
    namesrv,
    access_commands,
):
    for _command in _module.COMMANDS:
        mqadmin.add_command(_command)

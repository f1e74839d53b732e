"""``python -m rocketpost.server mqnamesrv|mqbroker ...``: the servers without console scripts."""

from __future__ import annotations

import click

from rocketpost.server.main import mqbroker, mqnamesrv


@click.group()
def servers() -> None:
    """Run a server."""


servers.add_command(mqnamesrv, "mqnamesrv")
servers.add_command(mqbroker, "mqbroker")

if __name__ == "__main__":
    servers()

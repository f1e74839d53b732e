"""``python -m rocketpost.server mqnamesrv|mqbroker|mqproxy``: servers without console scripts."""

from __future__ import annotations

import click

from rocketpost.server.main import mqbroker, mqnamesrv, mqproxy


@click.group()
def servers() -> None:
    """Run a server."""


servers.add_command(mqnamesrv, "mqnamesrv")
servers.add_command(mqbroker, "mqbroker")
servers.add_command(mqproxy, "mqproxy")

if __name__ == "__main__":
    servers()

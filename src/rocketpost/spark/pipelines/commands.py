"""The command group ``rocketpost pipeline NAME``."""

from __future__ import annotations

import click

from rocketpost.spark.pipelines.archive_command import archive
from rocketpost.spark.pipelines.audit.command import audit
from rocketpost.spark.pipelines.copy_commands import dead_letters, replay


@click.group()
def pipeline() -> None:
    """Run jobs over many messages, on Spark."""


pipeline.add_command(archive)
pipeline.add_command(audit)
pipeline.add_command(replay)
pipeline.add_command(dead_letters)

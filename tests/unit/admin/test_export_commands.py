"""Exports of clusters that have lost masters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from rocketpost.admin.command import Failure
from rocketpost.admin.export_commands import export_configs, export_metrics
from rocketpost.client.admin.cluster import ClusterAdmin
from rocketpost.codec.bodies.cluster import ClusterInfo
from rocketpost.model.route import BrokerData


class Brokers(ClusterAdmin):
    """An admin client for brokers of a cluster c, given by their addresses by id."""

    name_servers = ["name:1"]  # noqa: RUF012

    def __init__(self, **brokers: dict[int, str]) -> None:
        self.cluster = self.brokers = self
        self._brokers = brokers

    async def info(self) -> ClusterInfo:
        table = {
            name: BrokerData(broker_name=name, broker_addrs=addresses, cluster="c")
            for name, addresses in self._brokers.items()
        }
        return ClusterInfo(broker_addr_table=table, cluster_addr_table={"c": sorted(table)})

    async def config(self, address: str) -> Any:  # type: ignore[override]
        return {"brokerName": address}


async def export(command: click.Command, admin: Any, directory: Path) -> None:
    await command.callback.__wrapped__(  # type: ignore[union-attr]
        admin, cluster="c", directory=directory, as_json=False
    )


@pytest.mark.parametrize("command", [export_configs, export_metrics], ids=lambda each: each.name)
async def test_a_cluster_with_only_a_slave_is_not_exported(
    command: click.Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Failure, match="the cluster c has no master"):
        await export(command, Brokers(a={1: "slave:1"}), tmp_path)
    assert capsys.readouterr().out == ""


async def test_a_broker_without_a_master_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await export(export_configs, Brokers(a={1: "slave:1"}, b={0: "master:1"}), tmp_path)
    printed = capsys.readouterr()
    assert printed.out == f"export {tmp_path / 'configs.json'} success\n"
    assert printed.err == "note: a has no master, and is left out\n"

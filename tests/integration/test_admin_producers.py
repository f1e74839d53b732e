"""``mqadmin producerState`` on real servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rocketpost.admin.main import mqadmin
from rocketpost.client import Message
from rocketpost.client.blocking import Producer
from rocketpost.testing import Cluster

pytestmark = pytest.mark.slow


def test_producers_are_shown(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        for name in ("first", "second"):
            with Producer(
                "p", name_servers=cluster.addresses, idempotent=True, producer_id=name, epoch=2
            ) as producer:
                for sequence in (0, 1, 4):
                    producer.send(Message("T", b"x"), sequence=sequence)

        def run(*words: str) -> str:
            command = ["producerState", *words, "-n", cluster.addresses]
            result = CliRunner().invoke(mqadmin, command, catch_exceptions=False)
            assert result.exit_code == 0, result.output
            return result.output

        lines = run("-c", "DefaultCluster").splitlines()
        assert [line.split()[1:5] for line in lines[1:3]] == [
            ["second", "2", "4", "1"],
            ["first", "2", "4", "1"],
        ]
        assert lines[1].endswith("0-1 4-4")
        assert lines[-1] == "2 of 2 producers"
        address = cluster.broker_addresses[0]
        shown = json.loads(run("-b", address, "-p", "first", "--json"))
        (state,) = shown[address]["producers"]
        assert (state["producerId"], state["runs"]) == ("first", [[0, 2], [4, 5]])
        assert len(json.loads(run("-b", address, "-m", "1", "--json"))[address]["producers"]) == 1
        assert json.loads(run("-b", address, "-p", "nobody", "--json"))[address]["producers"] == []

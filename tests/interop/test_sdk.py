"""The SDK's own integration tests, run against Apache's name server and broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from interop.servers import Cluster

pytestmark = pytest.mark.interop

INTEGRATION = Path(__file__).parents[1] / "integration"
    with Cluster(tmp_path, "apache", settings=SETTINGS) as cluster:


def test_the_sdk_works_with_apaches_servers(java: None, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *SCENARIOS]
    with Cluster(tmp_path, "apache", settings=SETTINGS) as cluster:
        done = subprocess.run(
            command,
            env={**os.environ, "ROCKETPOST_NAMESRV": cluster.namesrv},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout

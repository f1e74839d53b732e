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
FILES = (
    "test_client_sdk.py",
    "test_client_filters.py",
    "test_requests.py",
    "test_admin_traces.py",
    "test_transactions.py",
)
SCENARIOS = [str(INTEGRATION / name) for name in FILES]
SETTINGS = {
    "enablePropertyFilter": "true",  # off by default there
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "2000",
}


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

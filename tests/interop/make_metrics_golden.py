"""Makes ``tests/golden/apache-5.5.0-metrics.json`` anew: the metrics of Apache's broker 5.5.0.

Run as ``python -m interop.make_metrics_golden`` with ``tests`` on the module path. The file has the
name, the type and the labels of every metric that a scrape shows after a little of everything.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Final

from integration.metrics_load import make_load, scrape
from interop.servers import Cluster, Jvm
from rocketpost.testing.process import free_port

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "apache-5.5.0-metrics.json"
PROFILE: Final = "server-5.5"


def main() -> None:
    """Run the broker, make some load, and write what a scrape shows."""
    port = free_port()
    settings = {
        "metricsExporterType": "PROM",
        "metricsPromExporterHost": "127.0.0.1",
        "metricsPromExporterPort": str(port),
        "timerWheelEnable": "true",
    }
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(
            Path(directory), "apache", settings=settings, broker_jvm=Jvm(profile=PROFILE)
        )
        with cluster:
            asyncio.run(make_load(cluster.namesrv, cluster.broker))
            found = scrape(f"http://127.0.0.1:{port}/metrics")
    own = {name: each for name, each in found.items() if name.startswith("rocketmq_")}
    GOLDEN.write_text(json.dumps(dict(sorted(own.items())), indent=1) + "\n")
    print(f"{len(own)} metrics")


if __name__ == "__main__":
    main()

"""Apache RocketMQ's broker as a server under measurement, with the jars of the interop suite.

Its JVM has RocketMQ's own options for a broker (``bin/runbroker.sh``) with a heap of 4 GB. Settings
that refuse requests on a busy machine are off, so that every request is served. Everything else is
as Apache ships it.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from servers import STORE_FILES, Target
from workloads import BROKER_NAME

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from interop.jvm import JavaMissingError, classpath
from interop.servers import SERVER_PROFILE, Cluster, Jvm

NAME: Final = "Apache"

_JVM: Final = Jvm(
    heap="4g",
    options=(
        "-server",
        "-Xms4g",
        "-XX:+UseG1GC",
        "-XX:G1HeapRegionSize=16m",
        "-XX:G1ReservePercent=25",
        "-XX:InitiatingHeapOccupancyPercent=30",
        "-XX:SoftRefLRUPolicyMSPerMB=0",
        "-XX:-OmitStackTraceInFastThrow",
        "-XX:MaxDirectMemorySize=4g",
        "-XX:-UseLargePages",
    ),
)
_SERVE_EVERYTHING: Final = {
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "60000",
    "waitTimeMillsInSendQueue": "60000",
    "waitTimeMillsInPullQueue": "60000",
    "syncFlushTimeout": "60000",
}


def why_missing() -> str:
    """Return why Apache's broker cannot run here, or nothing if it can."""
    try:
        classpath(SERVER_PROFILE)
    except JavaMissingError as missing:
        return str(missing)
    return ""


def versions() -> dict[str, str]:
    """Return the versions of Java and of RocketMQ."""
    printed = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    java = re.search(r'version "([^"]+)"', printed)
    broker = re.search(r"rocketmq-broker-([0-9.]+)\.jar", classpath(SERVER_PROFILE))
    assert java
    assert broker
    return {"java": java[1], "rocketmq": broker[1]}


@contextlib.contextmanager
def apache_broker(directory: Path, *, flush: str) -> Iterator[Target]:
    """Run Apache's broker; its name server is ours."""
    settings = {**STORE_FILES, **_SERVE_EVERYTHING, "flushDiskType": flush}
    with Cluster(
        directory,
        "apache",
        broker_name=BROKER_NAME,
        namesrv_maker="rocketpost",
        settings=settings,
        broker_jvm=_JVM,
    ) as cluster:
        assert cluster.broker_server is not None
        yield Target(NAME, cluster.broker_server.pid, cluster.broker_port)

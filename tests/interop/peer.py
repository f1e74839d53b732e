"""The Java client of the remoting protocol on a leash: one JVM per client version.

The other end is ``java/src/rocketpost/interop/Peer.java``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from interop.jvm import client_classpath, java_command
from interop.leash import Event, Leash, PeerError, named

__all__ = ["Event", "Peer", "PeerError", "named"]

# Members share queues every 20 s otherwise, and queues that are new to them wait for so long.
_QUICK_SHARING: Final = "-Drocketmq.client.rebalance.waitInterval=1000"


class Peer(Leash):
    """A running Java client. Not thread-safe: one command at a time."""

    def __init__(self, version: str, home: Path, *properties: str) -> None:
        self.version = version
        command = java_command(
            client_classpath(version),
            "rocketpost.interop.Peer",
            heap="256m",
            home=home,
            properties=(_QUICK_SHARING, *properties),
        )
        super().__init__(f"peer-{version}", command, home)

    def mqadmin(self, namesrv: str, line: str) -> str:
        """Run Apache's ``mqadmin`` with the words of ``line`` and return what it printed."""
        [printed] = self.run("mqadmin", namesrv=namesrv, line=line)
        text: str = printed["text"]
        return text

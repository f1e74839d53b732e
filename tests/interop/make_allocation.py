"""Makes ``tests/golden/allocation.json``: shares as the strategies of the Java client compute them.

Both client releases are asked and must agree. No broker takes part. Run with ``tests`` on the
module path: ``python -m interop.make_allocation``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from interop.jvm import CLIENT_VERSIONS
from interop.peer import Peer

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "allocation.json"
TOPIC: Final = "Orders"

_BROKERS: Final = (
    {"broker-a": 1},
    {"broker-a": 8},
    {"broker-a": 5, "broker-b": 7},
    {"hall@a": 4, "hall@b": 3, "shed@c": 5, "attic@d": 2},
    {"hall@a": 4, "shed@": 2, "hall@x@y": 3, "hall@z@": 2},
)
_MEMBERS: Final = (
    ["hall@1"],
    ["hall@1", "hall@2", "shed@1"],
    ["192.0.2.1@17#42", "192.0.2.1@18#43", "192.0.2.2@DEFAULT", "größe@7"],
    [f"shed@{n:02}" for n in range(11)],
)
_STRATEGIES: Final[tuple[dict[str, Any], ...]] = (
    {"strategy": "AVG"},
    {"strategy": "AVG_BY_CIRCLE"},
    {"strategy": "CONSISTENT_HASH"},
    {"strategy": "CONSISTENT_HASH", "nodes": 3},
    {"strategy": "MACHINE_ROOM", "rooms": "hall"},
    {"strategy": "MACHINE_ROOM", "rooms": "hall,shed,nowhere"},
    {"strategy": "MACHINE_ROOM_NEARBY-AVG"},
)


def questions() -> Iterator[dict[str, Any]]:
    """Yield every combination of strategy, queues and members."""
    for strategy in _STRATEGIES:
        for brokers in _BROKERS:
            queues = [f"{name}:{n}" for name in sorted(brokers) for n in range(brokers[name])]
            for members in _MEMBERS:
                yield {**strategy, "queues": queues, "members": sorted(members)}


def ask(peer: Peer, question: dict[str, Any]) -> dict[str, Any]:
    """Return the question with the shares that Java computes."""
    words = {
        key: ",".join(value) if isinstance(value, list) else value
        for key, value in question.items()
    }
    [answer] = peer.run("allocate", topic=TOPIC, **words)
    assert answer["name"] == question["strategy"]
    return {**question, "shares": answer["shares"]}


def main() -> None:
    """Ask both releases and write the file."""
    with tempfile.TemporaryDirectory() as scratch:
        answers = []
        for version in CLIENT_VERSIONS:
            with Peer(version, Path(scratch) / version) as peer:
                answers.append([ask(peer, question) for question in questions()])
    first, *others = answers
    assert all(other == first for other in others), "the releases disagree"
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in first)
    GOLDEN.write_text(f'{{"topic": "{TOPIC}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()

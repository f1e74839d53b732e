"""How the tests are shared out when several processes run them."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

SPARK = "tests/integration/spark/"


class OneSpark(LoadFileScheduling):
    """Keeps the tests of one file together, and all those that share Spark's session."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return OneSpark(config, log) if config.getoption("dist") == "loadfile" else None

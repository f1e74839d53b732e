"""The store's threads stay asleep here: tests do their work, so that a seed tells everything."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def sleeping_threads() -> Iterator[None]:
    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if not thread.name.startswith("store-"):
            start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_others)
        yield

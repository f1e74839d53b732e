"""A million frames of random traffic, with the send lane and without it: nothing may differ."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

FRAMES = 1_000_000
FRAMES_A_RUN = 5_000
_FOLDER = Path(__file__).parents[1] / "simulation"


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(_FOLDER))
    yield importlib.import_module("lane.test_send_lane")
    for name in [name for name in sys.modules if name.partition(".")[0] == "lane"]:
        del sys.modules[name]


@pytest.mark.long
def test_a_million_frames(tmp_path: Path, simulation: object) -> None:
    from lane.rig import COMPILED, MODES, PEERS, UNCOMPILED  # type: ignore[import-not-found]
    from lane.test_send_lane import check  # type: ignore[import-not-found]
    from lane.traffic import steps_of  # type: ignore[import-not-found]

    lanes = [COMPILED] if COMPILED in MODES else [UNCOMPILED]
    for seed in range(FRAMES // FRAMES_A_RUN):
        # The uncompiled lane takes as long as all others together: a tenth is enough for it.
        modes = [*lanes, UNCOMPILED] if seed % 10 == 0 else lanes
        root = tmp_path / str(seed)
        # A failed write takes with it what was written together. The lane has its messages written
        # before a new segment begins, so failures are left to the short runs of the simulation.
        steps = steps_of(seed, FRAMES_A_RUN, len(PEERS), failures=False)
        check(root, steps, modes, seed=seed)
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

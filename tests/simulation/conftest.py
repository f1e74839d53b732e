"""Seeds: printed when a simulation fails, and taken from ``--seed`` to run one again."""

from __future__ import annotations

import random
import zlib

import pytest

SEED_COUNT_DEFAULT = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="run simulations from this seed only")
    parser.addoption(
        "--seeds", type=int, default=SEED_COUNT_DEFAULT, help="how many seeds each simulation gets"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for ``seed`` once per seed; the seed is part of its name."""
    if "seed" not in metafunc.fixturenames:
        return
    given = metafunc.config.getoption("--seed")
    if given is None:
        # Each test has seeds of its own, the same in every run.
        base = zlib.crc32(metafunc.function.__name__.encode()) % 10_000 * 1000
        seeds = [base + n for n in range(metafunc.config.getoption("--seeds"))]
    else:
        seeds = [given]
    metafunc.parametrize("seed", seeds, ids=[f"seed={seed}" for seed in seeds])


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Say how to run a failed simulation again."""
    outcome = yield
    report = outcome.get_result()
    seed = getattr(item, "callspec", None) and item.callspec.params.get("seed")  # type: ignore[attr-defined]
    if report.failed and seed is not None:
        report.sections.append(
            ("seed", f"run again with: pytest {item.nodeid.split('[')[0]} --seed={seed}")
        )

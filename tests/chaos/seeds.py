"""Many seeds of a simulation, run by some processes beside each other."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

T = TypeVar("T")


def chunks_of(
    run_chunk: Callable[[int, int], T], first: int, count: int, *, chunk: int, processes: int
) -> Iterator[T]:
    """Run seeds in chunks, and return what each chunk returns, in the order in which they end.

    Args:
        run_chunk: Runs the seeds from the first number on, as many as the second one says.
        first: The first seed.
        count: Number of seeds.
        chunk: Number of seeds that a process runs before it reports.
        processes: Number of processes.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [
            pool.submit(run_chunk, begin, min(chunk, first + count - begin))
            for begin in range(first, first + count, chunk)
        ]
        for future in as_completed(futures):
            yield future.result()

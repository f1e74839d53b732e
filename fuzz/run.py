"""Fuzz everything for a while: ``python fuzz/run.py [--seconds N] [TARGET ...]``.

The saved inputs are replayed first. Every target then runs in a process of its own. What breaks a
promise is written to ``fuzz/finds/TARGET/``, printed, and makes the exit code 1. To keep a find,
move the file to ``fuzz/corpus/TARGET/``, where a unit test replays it.

``--checked DIR`` runs the package in ``DIR``, whose kernel is compiled with checks of bounds and
memory (``make checked-kernel``). A wrong access to memory then ends the process: a find too. The
unit tests of the kernel run first, unless targets are named.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fuzz.finding import judge_ignored  # noqa: E402 - the path comes first
from fuzz.targets import NAMES, load  # noqa: E402
from rocketpost.kernel import FORM  # noqa: E402
from rocketpost.kernel.form import read_record  # noqa: E402

CORPUS = ROOT / "fuzz" / "corpus"
FINDS = ROOT / "fuzz" / "finds"
INPUT_SECONDS_MAX = 30
INPUT_BYTES_MAX = 4096
MEMORY_MB_MAX = 2048


CHECKED = "ROCKETPOST_FUZZ_CHECKED"
"""Set in processes that run a checked kernel: the checks that it was compiled with."""


def checked_environment(package: Path) -> dict[str, str]:
    """Return the environment of a process that imports ``package`` with all checks.

    Raises:
        SystemExit: The library of the checks is missing.
    """
    record = read_record(str(package / "rocketpost" / "kernel"))
    paths = filter(None, (str(package.resolve()), os.environ.get("PYTHONPATH")))
    added = {"PYTHONPATH": os.pathsep.join(paths), CHECKED: record.get("sanitizers", "")}
    if added[CHECKED]:
        # Python has no memory checks itself, so their library has to be loaded before it. Objects
        # are allocated one by one: reading beyond one would else only reach its neighbour.
        added |= {
            "LD_PRELOAD": str(_library_beside_atheris() or record["preload"]),
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=64",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
        }
        if not added["LD_PRELOAD"]:
            raise SystemExit("the library of the memory checks is missing: pip install atheris")
    return {**os.environ, **added}


def _library_beside_atheris() -> Path | None:
    """Return memory checks that can count branches; those of the compiler turn that off."""
    found = importlib.util.find_spec("atheris")
    if found is None or found.origin is None:
        return None
    library = Path(found.origin).parents[1] / "asan_with_fuzzer.so"
    return library if library.exists() else None


def run_kernel_tests() -> bool:
    """Run the unit tests of the kernel's compiled form; return whether they pass."""
    tests = ("tests/unit/kernel", "--ignore=tests/unit/kernel/test_form.py", "-k", "compiled")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


class Outcome(NamedTuple):
    """Result of fuzzing one target."""

    executions: str
    coverage: str
    features: str
    find: str | None


def replay(name: str) -> str | None:
    """Run the saved inputs of a target; return what went wrong, if anything did."""
    target = load(name)
    check = judge_ignored(target.check)
    try:
        for path in sorted((CORPUS / name).glob("*")):
            try:
                check(path.read_bytes())
            except Exception:
                return f"{path.name}:\n{traceback.format_exc()}"
    finally:
        target.close()
    return None


def fuzz(name: str, seconds: int) -> Outcome:
    """Run a target for a while."""
    finds = FINDS / name
    finds.mkdir(parents=True, exist_ok=True)
    before = set(finds.iterdir())
    with tempfile.TemporaryDirectory(prefix="rocketpost-corpus-") as grown:
        done = subprocess.run(
            [
                sys.executable,
                *("-m", "fuzz.one", name, grown, str(CORPUS / name)),
                f"-max_total_time={seconds}",
                f"-timeout={INPUT_SECONDS_MAX}",
                f"-rss_limit_mb={MEMORY_MB_MAX}",
                f"-max_len={INPUT_BYTES_MAX}",
                f"-artifact_prefix={finds}/",
                "-print_final_stats=1",
                "-len_control=20",
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    text = done.stdout.decode("utf-8", "replace")
    new = sorted(path.name for path in set(finds.iterdir()) - before)
    failed = done.returncode or new
    return Outcome(
        executions=_last(r"stat::number_of_executed_units:\s*(\d+)", text),
        coverage=_last(r"cov: (\d+)", text),
        features=_last(r"ft: (\d+)", text),
        find=f"{', '.join(new) or 'no input saved'}\n{_trouble(text)}" if failed else None,
    )


def main() -> int:
    """Replay, fuzz, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(NAMES))
    parser.add_argument("--seconds", type=int, default=35, help="for each target (default 35)")
    parser.add_argument("--replay", action="store_true", help="only run the saved inputs")
    parser.add_argument("--checked", metavar="DIR", type=Path, help="package with a checked kernel")
    given = parser.parse_args()
    if given.checked is not None and os.environ.get(CHECKED) is None:
        os.execve(sys.executable, [sys.executable, *sys.argv], checked_environment(given.checked))
    print(
        f"kernel {FORM.word} {FORM.reason}; checks: {os.environ.get(CHECKED) or 'none'}", flush=True
    )
    found = bool(os.environ.get(CHECKED)) and not given.targets and not run_kernel_tests()
    for name in given.targets or NAMES:
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
        problem = replay(name)
        if problem is not None:
            print(f"{name:9} a saved input fails again: {problem}", flush=True)
            found = True
            continue
        if given.replay:
            print(f"{name:9} {len(list((CORPUS / name).iterdir()))} saved inputs", flush=True)
            continue
        outcome = fuzz(name, given.seconds)
        print(
            f"{name:9} executions={outcome.executions} coverage={outcome.coverage} "
            f"features={outcome.features} {'FIND' if outcome.find else 'ok'}",
            flush=True,
        )
        if outcome.find:
            print(outcome.find, flush=True)
            found = True
    return 1 if found else 0


def _last(pattern: str, text: str) -> str:
    found = re.findall(pattern, text)
    return found[-1] if found else "?"


def _trouble(text: str) -> str:
    at = text.rfind("=== Uncaught Python exception")
    if at < 0:
        at = max(text.rfind("ERROR: libFuzzer"), 0)
    return text[at : at + 8000] if at else text[-3000:]


if __name__ == "__main__":
    sys.exit(main())

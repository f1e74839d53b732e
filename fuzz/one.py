"""Run one target under Atheris: ``python -m fuzz.one TARGET [libFuzzer options and corpora]``."""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]


def main() -> None:
    """Fuzz until a find, or as long as the options say."""
    name = sys.argv.pop(1)
    from fuzz import targets
    from fuzz.finding import judge_ignored

    with atheris.instrument_imports(include=["rocketpost"]):
        target = targets.load(name)
    atheris.Setup(sys.argv, judge_ignored(target.check), enable_python_coverage=True)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

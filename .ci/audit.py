"""Look for known weaknesses in pinned versions: ``python .ci/audit.py constraints.txt``.

Exits with 0 if there is none, with 1 if there is one, and with 3 if that could not be found out:
pip-audit is not installed, or the service that it asks does not answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

NONE, FOUND, UNKNOWN = 0, 1, 3


def judge(report: dict[str, Any]) -> tuple[int, list[str]]:
    """Return the exit code for a report of pip-audit, and lines that explain it."""
    packages = report.get("dependencies", [])
    skipped = [each["name"] for each in packages if "skip_reason" in each]
    lines = [
        f"{each['name']} {each['version']}: {weakness['id']}"
        f" (fixed in {', '.join(weakness.get('fix_versions') or ['no version'])})"
        for each in packages
        for weakness in each.get("vulns", ())
    ]
    if lines:
        return FOUND, lines
    if skipped or not packages:
        return UNKNOWN, [f"not checked: {len(skipped)} of {len(packages)} packages are not known"]
    return NONE, [f"no known weakness in {len(packages)} packages"]


def main(arguments: Sequence[str]) -> int:
    """Ask about the versions in a file, and print the result."""
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "-f", "json"]
    done = subprocess.run(
        [*command, "-r", *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    try:
        code, lines = judge(json.loads(done.stdout))
    except json.JSONDecodeError:
        code, lines = UNKNOWN, ["not checked:", *done.stderr.strip().splitlines()[-1:]]
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

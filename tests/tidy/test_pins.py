"""The versions that CI installs: one for each package, and all that the project needs."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def pins() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, is_pinned, version = line.partition("==")
            assert is_pinned, line
            assert canonicalize_name(name) not in found, line
            found[canonicalize_name(name)] = version
    return found


def needed() -> list[Requirement]:
    """Return what the project needs with all that `make setup` installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    left, found, seen = [*project["dependencies"], *extras["dev"]], [], set()
    while left:
        each = Requirement(left.pop())
        if each.name != "rocketpost":
            found.append(each)
            continue
        for extra in each.extras - seen:
            seen.add(extra)
            left += extras[extra]
    return found


def test_every_package_that_ci_installs_is_pinned_to_a_version_that_is_allowed() -> None:
    versions = pins()
    for each in needed():
        version = versions.get(canonicalize_name(each.name))
        assert version is not None, f"{each.name} is not pinned: make pins"
        assert each.specifier.contains(version, prereleases=True), (each, version)


def test_ci_installs_these_versions_and_asks_about_them() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert 'export PIP_CONSTRAINT="$PWD/constraints.txt"' in script
    assert ".ci/audit.py constraints.txt" in script


@pytest.fixture
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_weakness_is_found_and_silence_is_no_proof(audit: ModuleType) -> None:
    safe = {"name": "a", "version": "1", "vulns": []}
    weak = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
    unknown = {"name": "c", "skip_reason": "not found"}
    assert audit.judge({"dependencies": [safe]})[0] == audit.NONE
    assert audit.judge({"dependencies": [safe, weak, unknown]}) == (
        audit.FOUND, ["b 2: CVE-1 (fixed in 3)"],
    )  # fmt: skip
    assert audit.judge({"dependencies": [safe, unknown]})[0] == audit.UNKNOWN
    assert audit.judge({})[0] == audit.UNKNOWN

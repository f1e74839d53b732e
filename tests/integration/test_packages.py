"""Everything to install: the wheel in a clean environment, units of systemd, image, chart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "rocketpost"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EVERYTHING = (
    "networkPolicy.enabled=true,serviceMonitor.enabled=true,prometheusRule.enabled=true,"
    "dashboards.enabled=true,broker.replicas=3,broker.existingSecret=keys"
)


def run(*words: object, seconds: float = 300, **options: Any) -> str:
    """Run a program, and return what it printed."""
    done = subprocess.run(
        [str(each) for each in words],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_the_wheel_works_in_a_clean_environment(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info", "build.*")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pure = {**os.environ, "ROCKETPOST_KERNEL": "uncompiled"}
    wheels = tmp_path / "wheels"
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, source, env=pure)
    (wheel,) = wheels.glob("rocketpost-*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    files = {
        str(each.relative_to(ROOT / "src"))
        for each in (ROOT / "src" / "rocketpost").rglob("*")
        if each.suffix in (".py", ".html", ".css", ".js", ".svg", ".toml")
    }
    assert files <= names
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    run(programs / "pip", "install", "-q", f"{wheel}[console]", cwd=tmp_path)
    assert "kernel uncompiled" in run(programs / "rocketpost", "--version", cwd=tmp_path)
    assert "queryMsgById" in run(programs / "mqadmin", cwd=tmp_path)
    run(programs / "python", "-c", "import rocketpost.console.server", cwd=tmp_path)
    tour = run(programs / "rocketpost", "tour", cwd=tmp_path, seconds=120)
    assert "console" in tour
    extras = run(
        programs / "python",
        "-c",
        "from importlib.metadata import metadata as m;"
        "print(*m('rocketpost').get_all('Provides-Extra'))",
    )
    assert {"console", "grpc", "otlp", "spark", "secure", "spans"} <= set(extras.split())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    copies = []
    for unit in UNITS:
        text = unit.read_text()
        for program in ("mqnamesrv", "mqbroker", "rocketpost"):
            (tmp_path / "bin" / program).write_text("#!/bin/sh\n")
            (tmp_path / "bin" / program).chmod(0o755)
        copy = tmp_path / unit.name.replace("@.", "@a.")
        copy.write_text(text.replace("/opt/rocketpost/bin", str(tmp_path / "bin")))
        copies.append(copy)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, copies)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_all_units_are_confined_alike() -> None:
    assert len(UNITS) == 3
    confined = [
        [line for line in unit.read_text().splitlines() if line.startswith(("Pro", "Priv", "Res"))]
        for unit in UNITS
    ]
    assert all("ProtectSystem=strict" in each for each in confined)
    assert all("NoNewPrivileges=yes" in unit.read_text() for unit in UNITS)


def test_the_image_runs_without_rights_and_asks_for_its_health() -> None:
    lines = (DEPLOY / "docker" / "Dockerfile").read_text().splitlines()
    assert "USER 10001:10001" in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert (ROOT / name).exists()
                assert f"!{name}" in ignored


def test_the_containers_are_read_only_and_dial_the_address_that_clients_are_told() -> None:
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yml").read_text())
    for service in compose["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        context = (DEPLOY / "docker" / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).exists()
    broker = compose["services"]["broker"]
    assert "$$ROCKETPOST_ADVERTISE:10911" in broker["healthcheck"]["test"][1]
    assert "ROCKETPOST_ADVERTISE" in broker["environment"]


def test_the_schema_of_the_chart_knows_every_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    _check_known(values, schema, "values")


def _check_known(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
    for name, value in values.items():
        described = schema["properties"].get(name)
        assert described is not None, f"{path}.{name} is not in the schema"
        if "properties" in described:
            _check_known(value, described, f"{path}.{name}")


needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="there is no helm")


@needs_helm
@pytest.mark.slow
@pytest.mark.parametrize("settings", ["broker.replicas=1", EVERYTHING])
def test_the_chart_is_rendered(settings: str) -> None:
    run("helm", "lint", "--strict", CHART, "--set", settings)
    text = run("helm", "template", "shop", CHART, "--namespace", "mq", "--set", settings)
    found = [each for each in yaml.safe_load_all(text) if each]
    kinds = [each["kind"] for each in found]
    assert kinds.count("StatefulSet") == 2
    broker = next(
        each
        for each in found
        if each["kind"] == "StatefulSet" and "broker" in each["metadata"]["name"]
    )
    pod = broker["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    addresses = next(each for each in container["env"] if each["name"] == "NAMESRV_ADDR")["value"]
    assert addresses == ";".join(
        f"shop-namesrv-{number}.shop-namesrv.mq.svc:9876" for number in range(2)
    )
    if settings == EVERYTHING:
        rules = next(each for each in found if each["kind"] == "PrometheusRule")
        shipped = yaml.safe_load((DEPLOY / "prometheus" / "rocketpost-alerts.yml").read_text())
        assert rules["spec"] == shipped
        boards = next(each for each in found if each["metadata"]["name"] == "shop-dashboards")
        assert len(boards["data"]) == 4
        assert all(json.loads(each)["title"] for each in boards["data"].values())
        assert {"ServiceMonitor", "NetworkPolicy", "PodDisruptionBudget"} <= set(kinds)


@needs_helm
@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["broker.replica=2", "broker.config.brokerName=x"])
def test_the_schema_refuses_wrong_values(wrong: str) -> None:
    done = subprocess.run(
        ["helm", "template", "shop", CHART, "--set", wrong],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "schema" in done.stderr

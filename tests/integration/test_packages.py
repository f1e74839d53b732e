"""Everything to install: the wheel in a clean environment, units of systemd, image, chart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rocketpost.server.settings.broker import broker_settings
from rocketpost.server.settings.metrics import MetricsExporter
from rocketpost.settings import parse_properties
from rocketpost.testing.process import free_port

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "rocketpost"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EVERYTHING = (
    "networkPolicy.enabled=true,serviceMonitor.enabled=true,prometheusRule.enabled=true,"
    "dashboards.enabled=true,broker.replicas=3,broker.existingSecret=keys"
)


def outer_environment() -> dict[str, str]:
    """The environment, without the way to the sources of a checkout that a test runs from."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def run(
    *words: object, seconds: float = 900, env: dict[str, str] | None = None, **options: Any
) -> str:
    """Run a program, and return what it printed; end it with all its children if it is late."""
    with subprocess.Popen(
        [str(each) for each in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=outer_environment() if env is None else env,
        **options,
    ) as process:
        try:
            out, errors = process.communicate(timeout=seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, out + errors
    return out


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a fresh checkout that packages are built from."""
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info", "build.*")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return source


def build_wheel(source: Path, target: Path, kernel: str) -> Path:
    """Build a wheel; the words of ``kernel`` are those of ROCKETPOST_KERNEL."""
    environment = {**outer_environment(), "ROCKETPOST_KERNEL": kernel}
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", target, source]
    run(*command, env=environment)
    (wheel,) = target.glob("rocketpost-*.whl")
    return wheel


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as packed:
        return set(packed.namelist())


def install(directory: Path, package: str) -> Path:
    """Install a package in a clean environment; return the directory of its commands."""
    run(sys.executable, "-m", "venv", directory)
    run(directory / "bin" / "pip", "install", "-q", package, cwd=directory)
    return directory / "bin"


def send_and_receive(programs: Path, directory: Path) -> None:
    """Run a name server, a broker and the tools as installed, outside of a checkout."""
    environment = outer_environment()
    port, broker_port = free_port(), free_port()
    (directory / "namesrv.conf").write_text(f"listenPort={port}\n")
    (directory / "broker.conf").write_text(
        f"listenPort={broker_port}\nbrokerIP1=127.0.0.1\nbrokerName=packed\n"
        f"storePathRootDir={directory / 'store'}\nmappedFileSizeCommitLog=8388608\n"
    )
    environment["NAMESRV_ADDR"] = f"127.0.0.1:{port}"
    options: dict[str, Any] = {"cwd": directory, "env": environment}
    servers = []
    try:
        for name in ("namesrv", "broker"):
            command = [programs / f"mq{name}", "-c", directory / f"{name}.conf"]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
            servers.append(server)
            assert server.stdout is not None
            assert "boot success" in server.stdout.readline()
        mqadmin = programs / "mqadmin"
        run(mqadmin, "updateTopic", "-c", "DefaultCluster", "-t", "Packed", "-r", 1, **options)
        sent = json.loads(
            run(mqadmin, "sendMessage", "-t", "Packed", "-p", "hi", "--json", **options)
        )
        assert "SEND_OK" in json.dumps(sent)
        assert "hi" in run(mqadmin, "printMsg", "-t", "Packed", "-d", "true", **options)
        rocketpost = programs / "rocketpost"
        health = run(rocketpost, "health", "-b", f"127.0.0.1:{broker_port}", **options)
        assert "ready" in health
    finally:
        for server in reversed(servers):
            server.terminate()
            server.communicate(timeout=60)
    assert [server.returncode for server in servers] == [0, 0]


@pytest.mark.long
def test_the_pure_wheel_works_in_a_clean_environment(source: Path, tmp_path: Path) -> None:
    wheel = build_wheel(source, tmp_path / "wheels", "uncompiled")
    assert wheel.name.endswith("-py3-none-any.whl")
    files = {
        str(each.relative_to(ROOT / "src"))
        for each in (ROOT / "src" / "rocketpost").rglob("*")
        if each.suffix in (".py", ".html", ".css", ".js", ".svg", ".toml", ".typed")
    }
    assert files <= names_in(wheel)
    programs = install(tmp_path / "venv", f"{wheel}[console,spans]")
    assert "kernel uncompiled" in run(programs / "rocketpost", "--version", cwd=tmp_path)
    assert "queryMsgById" in run(programs / "mqadmin", cwd=tmp_path)
    run(programs / "python", "-c", "import rocketpost.console.server", cwd=tmp_path)
    send_and_receive(programs, tmp_path)
    tour = run(programs / "rocketpost", "tour", cwd=tmp_path, seconds=120)
    assert "console" in tour


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_compiled_wheel_brings_the_kernel(source: Path, tmp_path: Path) -> None:
    wheel = build_wheel(source, tmp_path / "wheels", "compiled")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-{tag}-{tag}-{platform}.whl")
    compiled = {Path(each).name.partition(".")[0] for each in names_in(wheel) if ".so" in each}
    declared = (ROOT / "src/rocketpost/kernel").glob("*.pxd")
    modules = {each.stem for each in declared if each.with_suffix(".py").exists()}
    assert modules
    assert modules <= compiled
    programs = install(tmp_path / "venv", str(wheel))
    # A machine without a compiler gets the compiled kernel.
    without = {"PATH": str(programs), "ROCKETPOST_KERNEL": "compiled"}
    version = run(programs / "rocketpost", "--version", cwd=tmp_path, env=without)
    assert "kernel compiled" in version
    send_and_receive(programs, tmp_path)


@pytest.mark.long
def test_a_source_distribution_has_all_that_a_wheel_needs(source: Path, tmp_path: Path) -> None:
    code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path, cwd=source)
    (archive,) = tmp_path.glob("rocketpost-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py"} <= {
        each.name for each in unpacked.iterdir()
    }
    wheels = [build_wheel(each, tmp_path / each.name, "uncompiled") for each in (unpacked, source)]
    first, second = (
        {name for name in names_in(each) if not name.endswith("RECORD")} for each in wheels
    )
    assert first == second


def test_extras_are_named_for_what_users_want() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    for users in ("console", "delta", "grpc", "otlp", "secure", "spans", "spark"):
        assert users in extras
    guide = (ROOT / "docs" / "guide" / "installing.md").read_text()
    ours = {
        "audit",
        "coverage",
        "dev",
        "docs",
        "fuzz",
        "kernel",
    }  # for those who work on Rocketpost
    assert [each for each in extras - ours if f"`{each}`" not in guide] == []


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


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="there is no hadolint")
def test_the_dockerfile_has_no_findings() -> None:
    assert run("hadolint", "--no-color", DEPLOY / "docker" / "Dockerfile") == ""


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


def _check_settings(text: str) -> None:
    """Check that a broker takes the settings, and serves its metrics where others reach them."""
    broker, store = broker_settings(parse_properties(text))
    assert broker.metrics_exporter is MetricsExporter.PROM
    assert broker.metrics_host == "0.0.0.0"
    assert store.root == "/data/store"


def test_a_broker_takes_the_settings_of_the_containers() -> None:
    _check_settings((DEPLOY / "docker" / "broker.conf").read_text())


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


def _check_by_the_schemas_of_kubernetes(found: list[dict[str, Any]]) -> None:
    """Check objects strictly, if the schemas are at hand (``pip install kubernetes-validate``)."""
    try:
        import kubernetes_validate
    except ImportError:
        return
    for each in found:
        if not each["apiVersion"].startswith("monitoring.coreos.com"):
            kubernetes_validate.validate(each, KUBERNETES[1], strict=True)


KUBERNETES = ("--kube-version", "1.31.0")
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="there is no helm")


@needs_helm
@pytest.mark.slow
@pytest.mark.parametrize("settings", ["broker.replicas=1", EVERYTHING])
def test_the_chart_is_rendered(settings: str) -> None:
    run("helm", "lint", "--strict", CHART, "--set", settings, *KUBERNETES)
    text = run("helm", "template", "shop", CHART, "-n", "mq", "--set", settings, *KUBERNETES)
    found = [each for each in yaml.safe_load_all(text) if each]
    _check_by_the_schemas_of_kubernetes(found)
    kinds = [each["kind"] for each in found]
    assert kinds.count("StatefulSet") == 2
    broker = next(
        each
        for each in found
        if each["kind"] == "StatefulSet" and "broker" in each["metadata"]["name"]
    )
    config = next(each for each in found if "broker.conf" in each.get("data", {}))
    _check_settings(config["data"]["broker.conf"])
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
        ["helm", "template", "shop", CHART, "--set", wrong, *KUBERNETES],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "schema" in done.stderr

"""The build of the kernel as a user meets it: with, without and with a broken C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from rocketpost.kernel.form import SWITCH, choose_form, module_names

ROOT = Path(__file__).resolve().parents[2]
KERNEL = Path("src", "rocketpost", "kernel")

try:
    import Cython  # noqa: F401 - build_ext imports it
except ImportError:
    pytest.skip("needs Cython", allow_module_level=True)
if int(version("setuptools").partition(".")[0]) < 77:
    pytest.skip("needs setuptools 77", allow_module_level=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of all that a build needs, with a kernel of one small module."""
    copy = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("*.c", "*.so", "*.properties", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src" / "rocketpost" / "kernel", copy / KERNEL, ignore=ignored)
    shutil.copy(ROOT / "src" / "rocketpost" / "__init__.py", copy / "src" / "rocketpost")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for path in (copy / KERNEL).glob("*.pxd"):
        if path.stem != "small":
            path.unlink()
    (copy / KERNEL / "small.py").write_text('"""Adds."""\n\ndef add(a, b):\n    return a + b\n')
    (copy / KERNEL / "small.pxd").write_text("cpdef long long add(long long a, long long b)\n")
    return copy


def build(
    checkout: Path, *options: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``setup.py``."""
    clean = {key: value for key, value in os.environ.items() if key not in (SWITCH, "CC")}
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", *options],
        cwd=checkout,
        env={**clean, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def can_compile() -> bool:
    return shutil.which("cc") is not None


@pytest.mark.slow
def test_a_build_without_a_compiler_says_so_and_succeeds(checkout: Path) -> None:
    for env, reason in (
        ({"CC": "/nowhere/cc"}, "there is no C compiler (/nowhere/cc)"),
        ({"CC": "false"}, "the C compiler does not work (false)"),
        ({SWITCH: "uncompiled"}, f"{SWITCH}=uncompiled"),
    ):
        done = build(checkout, "build_ext", "--inplace", env=env)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"kernel: uncompiled: {reason}"), done.stdout
        assert choose_form(str(checkout / KERNEL), "").state == "absent"


@pytest.mark.slow
def test_a_build_that_must_compile_fails_without_a_compiler(checkout: Path) -> None:
    done = build(checkout, "build_ext", "--inplace", env={"CC": "false", SWITCH: "compiled"})
    assert done.returncode != 0
    assert f"{SWITCH}=compiled, but the kernel cannot be compiled" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="needs a C compiler")
@pytest.mark.long
def test_only_changed_modules_are_compiled_again(checkout: Path) -> None:
    folder = str(checkout / KERNEL)
    done = build(checkout, "build_ext", "--inplace")
    assert done.stdout.startswith("kernel: compiled 1 module in "), done.stderr
    assert choose_form(folder, "").is_compiled
    assert [path.name for path in checkout.rglob("*.c")] == ["small.c"]
    assert "nothing has changed" in build(checkout, "build_ext", "--inplace").stdout
    assert (
        "nothing has changed" in build(checkout, "build_ext", "--inplace", env={"CC": "no"}).stdout
    )
    with (checkout / KERNEL / "small.py").open("a") as file:
        file.write("# changed\n")
    assert choose_form(folder, "").state == "stale"
    assert "compiled 1 module" in build(checkout, "build_ext", "--inplace").stdout
    assert choose_form(folder, "").is_compiled


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="needs a C compiler")
@pytest.mark.long
def test_a_module_that_does_not_compile_is_reported_and_skipped(checkout: Path) -> None:
    (checkout / KERNEL / "small.pxd").write_text("cpdef nonsense add(long long a, long long b)\n")
    done = build(checkout, "build_ext", "--inplace")
    assert done.returncode == 0
    reason = "small.pxd:1:6: 'nonsense' is not a type identifier"
    assert "kernel: uncompiled: compiling it failed: " in done.stdout
    assert reason in done.stdout
    assert reason in choose_form(str(checkout / KERNEL), "").reason
    assert choose_form(str(checkout / KERNEL), "").state == "failed"
    assert build(checkout, "build_ext", "--inplace", env={SWITCH: "compiled"}).returncode != 0


@pytest.mark.long
@pytest.mark.skipif(not can_compile(), reason="needs a C compiler")
def test_a_checked_kernel_finds_wrong_accesses_to_memory(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from fuzz.run import checked_environment

    (checkout / KERNEL / "small.py").write_text(
        "def peek(data, at):\n    text = data\n    return text[at]\n"
        "def pick(data, at):\n    return data[at]\n"
    )
    (checkout / KERNEL / "small.pxd").write_text(
        "cimport cython\n"
        "@cython.locals(text='const unsigned char*')\n"
        "cpdef int peek(bytes data, Py_ssize_t at)\n"
        "cpdef int pick(const unsigned char[::1] data, Py_ssize_t at)\n"
    )
    package = checkout / "build" / "checked"
    options = ("build_ext", "--checked", "build", "--build-lib", str(package))
    done = build(checkout, *options, env={SWITCH: "compiled"})
    assert done.returncode == 0, done.stderr
    environment = checked_environment(package)
    if not environment.get("LD_PRELOAD"):
        pytest.skip("the compiler has no memory checks")

    def run(code: str) -> subprocess.CompletedProcess[str]:
        code = f"from rocketpost.kernel import FORM, small; print(FORM.word, small.{code})"
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    assert run("peek(bytes(100), 99)").stdout == "compiled 0\n"
    assert "heap-buffer-overflow" in run("peek(bytes(100), 200)").stderr
    assert "IndexError" in run("pick(memoryview(bytes(100))[:50], 60)").stderr


@pytest.mark.slow
@pytest.mark.parametrize("wish", ["", "uncompiled"])
def test_a_wheel_is_platform_specific_only_if_compiled(checkout: Path, wish: str) -> None:
    done = build(checkout, "bdist_wheel", env={SWITCH: wish})
    (wheel,) = (checkout / "dist").iterdir()
    compiled = can_compile() and wish != "uncompiled"
    assert wheel.name.endswith("-py3-none-any.whl") is not compiled, done.stdout
    names = subprocess.check_output([sys.executable, "-m", "zipfile", "-l", str(wheel)], text=True)
    assert ("kernel/build." in names) is compiled
    assert ("kernel/small.cpython" in names) is compiled
    assert "kernel/small.pxd" in names


@pytest.mark.slow
def test_a_source_distribution_has_all_that_is_compiled(checkout: Path) -> None:
    shutil.rmtree(checkout / KERNEL)
    shutil.copytree(ROOT / KERNEL, checkout / KERNEL)
    done = build(checkout, "sdist")
    assert done.returncode == 0, done.stderr
    (archive,) = (checkout / "dist").iterdir()
    with tarfile.open(archive) as opened:
        names = {Path(name).name for name in opened.getnames()}
    modules = module_names(str(ROOT / KERNEL))
    assert {"setup.py", "form.py"} <= names
    assert {f"{name}.py" for name in modules} | {f"{name}.pxd" for name in modules} <= names
    assert not [name for name in names if name.endswith((".so", ".properties"))]

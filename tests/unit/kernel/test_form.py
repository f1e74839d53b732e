"""Compiled modules are used if they were made from the sources beside them, and never otherwise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import rocketpost
from rocketpost.kernel import FORM
from rocketpost.kernel.form import (
    SWITCH,
    choose_form,
    digest_sources,
    format_record,
    read_record,
    record_path,
)

PACKAGE = Path(rocketpost.__file__).parent


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the kernel whose compiled module is no library: loading it is an error."""
    copy = tmp_path / "rocketpost"
    ignored = shutil.ignore_patterns("*.so", "*.properties", "__pycache__")
    shutil.copytree(PACKAGE / "kernel", copy / "kernel", ignore=ignored)
    shutil.copy(PACKAGE / "__init__.py", copy)
    return copy


@pytest.fixture
def folder(package: Path) -> Path:
    """The same, with the record of a successful build."""
    folder = package / "kernel"
    for source in folder.glob("*.pxd"):
        source.with_suffix(EXTENSION_SUFFIXES[0]).write_bytes(b"not a library")
    write_record(folder, compiler="cc 1.0", cython="3.1", **digest_sources(str(folder)))
    return folder


def write_record(folder: Path, **values: str) -> None:
    Path(record_path(str(folder))).write_text(format_record(values))


def load(folder: Path, wish: str = "") -> subprocess.CompletedProcess[str]:
    """Import a kernel module in a process of its own."""
    return subprocess.run(
        [
            *(sys.executable, "-S", "-c"),
            "from rocketpost.kernel import FORM, hashing; print(FORM.word, hashing.__file__)",
        ],
        env={**os.environ, "PYTHONPATH": str(folder.parent.parent), SWITCH: wish},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_compiled_modules_of_these_sources_are_used(folder: Path) -> None:
    assert choose_form(str(folder), "") == ("compiled", "by cc 1.0 from Cython 3.1")
    done = load(folder)
    assert "ImportError" in done.stderr  # tried, since it is not a library
    assert "hashing" in done.stderr


def test_an_edited_source_is_never_shadowed_by_its_compiled_module(folder: Path) -> None:
    with (folder / "hashing.py").open("a") as file:
        file.write("\n")
    form = choose_form(str(folder), "")
    assert form == ("stale", "hashing.py changed after it was compiled")
    assert form.is_unusable
    assert load(folder).stdout == f"uncompiled {folder / 'hashing.py'}\n"


def test_the_time_of_a_file_does_not_matter(folder: Path) -> None:
    os.utime(folder / "hashing.py")
    assert choose_form(str(folder), "").is_compiled


def test_added_and_removed_sources_count_as_changes(folder: Path) -> None:
    (folder / "new.pxd").touch()
    (folder / "new.py").touch()
    assert choose_form(str(folder), "").reason == "new.pxd and 1 more changed after it was compiled"
    (folder / "new.pxd").unlink()
    assert choose_form(str(folder), "").is_compiled
    (folder / "hashing.pxd").unlink()
    assert choose_form(str(folder), "").state == "stale"


def test_a_lost_compiled_module_is_noticed(folder: Path) -> None:
    (folder / f"hashing{EXTENSION_SUFFIXES[0]}").unlink()
    assert choose_form(str(folder), "") == ("stale", "the compiled hashing is missing")


def test_compiled_modules_without_a_record_are_not_trusted(folder: Path) -> None:
    Path(record_path(str(folder))).unlink()
    form = choose_form(str(folder), "")
    assert form.state == "absent"
    assert not form.is_unusable
    assert load(folder).stdout == f"uncompiled {folder / 'hashing.py'}\n"


def test_a_failed_build_is_reported(folder: Path) -> None:
    write_record(folder, failure="no space\nleft on device")
    assert choose_form(str(folder), "") == (
        "failed",
        "compiling it failed: no space left on device",
    )


def test_the_switch_hides_compiled_modules(folder: Path) -> None:
    assert choose_form(str(folder), "uncompiled") == ("switched off", f"{SWITCH}=uncompiled")
    assert load(folder, "uncompiled").stdout == f"uncompiled {folder / 'hashing.py'}\n"


def test_the_switch_can_insist_on_compiled_modules(folder: Path) -> None:
    assert choose_form(str(folder), "compiled").is_compiled
    Path(record_path(str(folder))).unlink()
    with pytest.raises(
        ImportError, match=f"{SWITCH}=compiled, but .* not compiled for this Python"
    ):
        choose_form(str(folder), "compiled")
    assert "not compiled for this Python" in load(folder, "compiled").stderr


def test_an_unknown_wish_is_refused(folder: Path) -> None:
    with pytest.raises(ImportError, match="must be compiled or uncompiled, not 'no'"):
        choose_form(str(folder), "no")


def test_a_record_survives_being_written(folder: Path) -> None:
    record = read_record(str(folder))
    assert format_record(record) == Path(record_path(str(folder))).read_text()


def test_this_kernel_is_compiled_or_there_was_no_way_to_compile_it() -> None:
    assert FORM.state != "failed", FORM.reason


def test_modules_are_loaded_in_the_form_that_is_reported() -> None:
    from rocketpost.kernel import hashing

    assert str(hashing.__file__).endswith(".py") is not FORM.is_compiled

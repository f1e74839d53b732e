"""Compiles the kernel, and only that; everything else about the package is in pyproject.toml.

The kernel is ordinary Python that also runs uncompiled. It is compiled where a C compiler and
Python's headers are installed. Where they are not, or if compiling fails, the package is built
without compiled modules, and a line says so. ``ROCKETPOST_KERNEL=compiled`` makes that an error;
``ROCKETPOST_KERNEL=uncompiled`` compiles nothing, so that the wheel fits every platform.

``python setup.py build_ext --inplace`` compiles modules whose sources have changed since the last
time (``make kernel``). With ``--checked``, bounds and memory are checked at run time.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, CompileError

KERNEL = Path("src/rocketpost/kernel")
BUILDING = {"build", "build_ext", "bdist_wheel", "editable_wheel", "install", "develop"}
DIRECTIVES = ("language_level=3", "annotation_typing=False", "wraparound=False")
# Debug information takes most of the compiler's time, and 20 MB.
FAST = ("-O3", "-g0") if os.name == "posix" else ()
CHECKED = ("-O1", "-g1", "-fno-omit-frame-pointer")
SANITIZERS = ("address,undefined", "address")
CHECK_LIBRARIES = ("libasan.so", "libubsan.so")
PROBE = "#include <Python.h>\nint main(void) { return 0; }\n"


def load_form() -> ModuleType:
    """Load the module that reads build records, without importing the package."""
    spec = importlib.util.spec_from_file_location("kernel_form", KERNEL / "form.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FORM = load_form()
WISH = os.environ.get(FORM.SWITCH, "")
if WISH not in ("", "compiled", "uncompiled"):
    sys.exit(f"{FORM.SWITCH} must be compiled or uncompiled, not {WISH!r}")


class BuildKernel(build_ext):
    """Compiles the modules whose sources have changed, and writes the build record."""

    user_options: ClassVar = [
        *build_ext.user_options,
        ("checked", None, "check bounds and memory at run time, for fuzzing"),
    ]
    boolean_options: ClassVar = [*build_ext.boolean_options, "checked"]

    def initialize_options(self) -> None:
        """Set defaults."""
        super().initialize_options()
        self.checked = False

    def finalize_options(self) -> None:
        """Use all cores unless told otherwise."""
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count() or 1
        self.force = True  # which modules are compiled is decided by their contents

    def run(self) -> None:
        """Compile; a failure is recorded and reported, and stops nothing unless asked to."""
        if not self.extensions:
            return
        started = time.monotonic()
        folder = KERNEL if self.inplace else Path(self.build_lib, "rocketpost", "kernel")
        path = Path(FORM.record_path(str(folder)))
        values = self._describe()
        previous = FORM.read_record(str(folder))
        self.extensions = [
            each
            for each in self.extensions
            if self._has_changed(each, previous, values) or not self._is_built(each, folder)
        ]
        if not self.extensions:
            say("compiled; nothing has changed since")
            return
        path.unlink(missing_ok=True)  # until all is done, the compiled modules are not used
        try:
            super().run()
        except (BaseError, CCompilerError, CompileError) as error:
            if WISH == "compiled":
                raise
            remove_compiled(folder)
            write(path, {"failure": first_line(str(error))})
            say(f"uncompiled: compiling it failed: {first_line(str(error))}")
            return
        remove_compiled(folder, but=FORM.module_names(str(KERNEL)))
        seconds = time.monotonic() - started
        write(path, {**values, "seconds": f"{seconds:.1f}"})
        names = "module" if len(self.extensions) == 1 else "modules"
        how = f"{values['compiler']}, Cython {values['cython']}"
        say(f"compiled {len(self.extensions)} {names} in {seconds:.1f} s ({how})")

    def build_extension(self, ext: Extension) -> None:
        """Translate one module to C and compile it."""
        name = ext.name.rpartition(".")[2]
        translated = Path(self.build_temp, "kernel", f"{name}.c")
        translated.parent.mkdir(parents=True, exist_ok=True)
        options = (*DIRECTIVES, f"boundscheck={bool(self.checked)}")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "cython", "-o", str(translated)),
                *(word for option in options for word in ("-X", option)),
                str(KERNEL / f"{name}.py"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or self.distribution.verbose:  # warnings are for those who change it
            print(done.stderr, file=sys.stderr, end="", flush=True)
        if done.returncode:
            said = re.search(r"^\S+:\d+:\d+: .*", done.stderr, re.MULTILINE)
            raise CompileError(said[0] if said else f"Cython failed on {name}.py")
        ext.sources = [str(translated)]
        # Not linked with the libraries of the checks: those are loaded before Python.
        ext.extra_compile_args = self._flags()
        super().build_extension(ext)

    def _flags(self) -> list[str]:
        if not self.checked:
            return list(FAST)
        kinds = sanitizers()
        return [*CHECKED, f"-fsanitize={kinds}", "-fno-sanitize-recover=all"] if kinds else ["-O1"]

    def _describe(self) -> dict[str, str]:
        """Return the build record, but for the time that the build takes."""
        from Cython import __version__

        values = {
            "compiler": compiler_version(),
            "cython": __version__,
            "flags": " ".join(self._flags()),
            **FORM.digest_sources(str(KERNEL)),
        }
        if self.checked and (kinds := sanitizers()):
            values["sanitizers"] = kinds
            found = (ask_compiler(f"-print-file-name={name}") for name in CHECK_LIBRARIES)
            values["preload"] = os.pathsep.join(filter(os.path.isabs, found))
        return values

    def _has_changed(
        self, ext: Extension, previous: dict[str, str], values: dict[str, str]
    ) -> bool:
        """Tell whether a module, or what all modules rely on, differs from what was compiled."""
        own = f"{ext.name.rpartition('.')[2]}.py"
        shared = [key for key in values if not key.endswith(".py")]
        return any(previous.get(key) != values[key] for key in (*shared, own))

    def _is_built(self, ext: Extension, folder: Path) -> bool:
        return (folder / Path(self.get_ext_filename(ext.name)).name).exists()


def kernel_extensions() -> list[Extension]:
    """Return the modules to compile; none if this machine cannot compile them."""
    if not BUILDING.intersection(sys.argv):
        return []
    if WISH == "uncompiled":
        say(f"uncompiled: {FORM.SWITCH}=uncompiled")
        return []
    if obstacle := find_obstacle():
        if WISH == "compiled":
            sys.exit(f"{FORM.SWITCH}=compiled, but the kernel cannot be compiled: {obstacle}")
        if "build_ext" in sys.argv and FORM.choose_form(str(KERNEL), "").is_compiled:
            say("compiled; nothing has changed since")
            return []
        say(f"uncompiled: {obstacle}. Everything works, but more slowly.")
        return []
    return [
        Extension(f"rocketpost.kernel.{name}", [str(KERNEL / f"{name}.py")])
        for name in FORM.module_names(str(KERNEL))
    ]


def find_obstacle() -> str | None:
    """Return what keeps this machine from compiling the kernel, if anything does."""
    if platform.python_implementation() != "CPython":
        return f"{platform.python_implementation()} runs the sources faster"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "compiled modules are not made for free-threaded Python yet"
    if importlib.util.find_spec("Cython") is None:
        return "Cython is not installed (pip install 'cython>=3.1')"
    if os.name != "posix":
        return None  # found out by compiling
    try:
        done = probe()
    except OSError:
        return f"there is no C compiler ({compiler()[0]}); on Debian, apt-get install gcc"
    if done.returncode == 0:
        return None
    if "Python.h" in done.stderr:
        return "Python's C headers are missing; on Debian, apt-get install python3-dev"
    return f"the C compiler does not work ({shlex.join(compiler())}): {first_line(done.stderr)}"


def compiler() -> list[str]:
    """Return the command of the C compiler that extensions are compiled with."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shlex.split(command)


def probe(*flags: str) -> subprocess.CompletedProcess[str]:
    """Compile and link a small program that needs Python's headers."""
    paths = sysconfig.get_paths()
    includes = [f"-I{paths['include']}", f"-I{paths['platinclude']}"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(PROBE)
        return subprocess.run(
            [*compiler(), *flags, *includes, str(source), "-o", str(source.with_suffix(""))],
            capture_output=True,
            text=True,
            check=False,
        )


def sanitizers() -> str:
    """Return the memory checks that the compiler has, as it names them."""
    return next((kinds for kinds in SANITIZERS if not probe(f"-fsanitize={kinds}").returncode), "")


def compiler_version() -> str:
    """Return the first line of what the compiler says about itself."""
    return first_line(ask_compiler("--version")) if os.name == "posix" else "the platform's"


def ask_compiler(option: str) -> str:
    """Return what the compiler prints."""
    done = subprocess.run([*compiler(), option], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def remove_compiled(folder: Path, *, but: Collection[str] = ()) -> None:
    """Remove compiled modules, such as those whose sources are gone."""
    suffix = FORM.EXTENSION_SUFFIXES[0]
    for path in folder.glob(f"*{suffix}"):
        if path.name.removesuffix(suffix) not in but:
            path.unlink()


def write(path: Path, values: dict[str, str]) -> None:
    """Replace the build record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(FORM.format_record(values), encoding="utf-8")
    new.replace(path)


def first_line(text: str) -> str:
    """Return the first line that is not empty."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


def say(text: str) -> None:
    """Report what was done."""
    print(f"kernel: {text}", flush=True)


setup(ext_modules=kernel_extensions(), cmdclass={"build_ext": BuildKernel})

"""Builds the kernel, and only that; everything else about the package is in pyproject.toml.

The kernel is ordinary Python that also runs uncompiled, so a missing compiler or a missing Cython
is no error: ``python setup.py build_ext --inplace`` speeds a checkout up, nothing depends on it.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

KERNEL = [
    "hashing",
    "property_columns",
    "queue_scan",
    "record_check",
    "record_columns",
    "record_gather",
    "record_scan",
]
# Views of memory are passed by value, 200 bytes each: small functions have to be inlined.
INLINE = ["-finline-limit=20000", "--param=inline-unit-growth=400"]
INLINE += ["--param=large-function-growth=2000"]


def kernel_extensions() -> list[Extension]:
    """Return the compiled modules, or none where Cython is not installed."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    folder = Path("src/rocketpost/kernel")
    extensions = [
        Extension(
            f"rocketpost.kernel.{name}",
            [str(folder / f"{name}.py")],
            extra_compile_args=INLINE if os.name == "posix" else [],
            optional=True,
        )
        for name in KERNEL
        if (folder / f"{name}.py").exists()
    ]
    directives = {
        "language_level": 3,
        "annotation_typing": False,
        "boundscheck": False,
        "wraparound": False,
    }
    built: list[Extension] = cythonize(extensions, compiler_directives=directives)
    return built


setup(ext_modules=kernel_extensions())

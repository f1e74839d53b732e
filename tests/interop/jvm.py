"""Java programs of the suite: class paths asked from Maven once, sources compiled once.

Everything made here lives below ``java/target``, which git ignores.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

JAVA_HOME_DIR: Final = Path(__file__).parent / "java"
TARGET: Final = JAVA_HOME_DIR / "target"
RESOURCES: Final = JAVA_HOME_DIR / "resources"
SOURCES: Final = JAVA_HOME_DIR / "src" / "rocketpost" / "interop"
CLIENT_VERSIONS: Final = ("5.3", "4.9")

_CLASSPATH_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
QUICK_START: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""Options for a Java program that starts soon and does little."""


class JavaMissingError(Exception):
    """Java, Maven or the artifacts are out of reach; the message says which."""


@functools.cache
def classpath(profile: str) -> str:
    """Return the class path of one profile of ``java/pom.xml``.

    Raises:
        JavaMissingError: A tool is not installed, or the artifacts cannot be fetched.
    """
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            raise JavaMissingError(f"no {tool} on the PATH")
    pom, cached = JAVA_HOME_DIR / "pom.xml", TARGET / f"{profile}.classpath"
    with _alone():
        if not _fresh(cached, pom):
            _resolve(profile, cached)
    return cached.read_text().strip()


@functools.cache
def client_classpath(version: str) -> str:
    """Return the class path of the client of ``version``, our compiled sources in front."""
    return _compiled(f"client-{version}", sorted(SOURCES.glob("*.java")), "interop/Peer")


@functools.cache
def official_classpath() -> str:
    """Return the class path of the official gRPC client, our compiled sources in front."""
    sources = [SOURCES / "Json.java", SOURCES.parent / "official" / "Driver.java"]
    return _compiled("client-grpc", sources, "official/Driver")


def _compiled(profile: str, sources: list[Path], main: str) -> str:
    libraries = classpath(profile)
    classes = TARGET / profile.replace("client", "classes")
    compiled = classes / "rocketpost" / f"{main}.class"
    with _alone():
        if not _fresh(compiled, *sources, TARGET / f"{profile}.classpath"):
            shutil.rmtree(classes, ignore_errors=True)
            command = ["javac", "-proc:none", "-nowarn", "-d", str(classes), "-cp", libraries]
            done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    return os.pathsep.join([str(RESOURCES), str(classes), libraries])


def java_command(
    classes: str,
    main: str,
    *args: str,
    heap: str,
    home: Path,
    properties: tuple[str, ...] = (),
    options: tuple[str, ...] = QUICK_START,
) -> list[str]:
    """Return the command line of a Java program that keeps its droppings below ``home``."""
    return [
        "java",
        f"-Xmx{heap}",
        *options,
        f"-Duser.home={home}",
        f"-Drocketmq.home.dir={RESOURCES}",
        "-Drocketmq.client.logLevel=WARN",
        *properties,
        "-cp",
        classes,
        main,
        *args,
    ]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keep other processes of this run from making the same things meanwhile."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with (TARGET / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _resolve(profile: str, cached: Path) -> None:
    fresh = cached.with_suffix(".new")
    command = ["mvn", "-B", "-q", "-f", str(JAVA_HOME_DIR / "pom.xml"), "-P", profile]
    options = ["-DincludeScope=runtime", f"-Dmdep.outputFile={fresh}"]
    done = subprocess.run([*command, _CLASSPATH_GOAL, *options], capture_output=True, text=True)
    if done.returncode != 0:
        raise JavaMissingError(
            f"Maven cannot resolve {profile}: {(done.stdout + done.stderr)[-600:]}"
        )
    fresh.rename(cached)


def _fresh(made: Path, *inputs: Path) -> bool:
    return made.exists() and all(made.stat().st_mtime >= path.stat().st_mtime for path in inputs)

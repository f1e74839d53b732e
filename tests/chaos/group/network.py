"""Hosts on one machine: a network namespace for each, and a router between them that drops packets.

    n0 ── 198.18.1.0/24 ──┐
    n1 ── 198.18.2.0/24 ──┼── router
    ...                   ┘

No host can reach anything else, and nothing of the machine's own network is changed. A packet is
dropped by a rule of the router for its source and its target, without an answer. So a cut can be
made for one direction only, and nobody is told of it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
Cut = tuple[str, str]
"""A source and a target whose packets are dropped."""

_NAMESPACES: Final = Path("/run/netns")
_PREFIX: Final = "rocketpost-"
_ROUTER: Final = "router"
_CLONE_NEWNET: Final = 0x4000_0000
_FIRST_RULE: Final = 100
_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """Return why no namespaces can be made here; an empty text if they can."""
    try:
        with Network(["probe"]):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", None) or error
        return f"network namespaces cannot be made here: {detail}"


def enter(namespace: str) -> None:
    """Move the calling thread into a namespace; threads and processes that it starts follow.

    Raises:
        OSError: There is no such namespace, or it may not be entered.
    """
    fd = os.open(_NAMESPACES / namespace, os.O_RDONLY)
    try:
        if _libc.setns(fd, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)


class Network:
    """Some hosts and the router between them. Use as a context manager.

    Args:
        hosts: The names of the hosts.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = tuple(hosts)
        self._cuts: set[Cut] = set()

    def __enter__(self) -> Network:
        _remove_left_over()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in (*self.hosts, _ROUTER):
            _remove(self.namespace(host))

    def namespace(self, host: str) -> str:
        """Return the name of a host's namespace."""
        return f"{_PREFIX}{os.getpid()}-{host}"

    def address(self, host: str) -> str:
        """Return the address of a host."""
        return f"198.18.{self.hosts.index(host) + 1}.2"

    def run_at(self, host: str, work: Callable[[], T]) -> T:
        """Run something in a thread that is at a host, and return its result."""
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                enter(self.namespace(host))
                results.append(work())
            except BaseException as error:  # given to the caller
                errors.append(error)

        thread = threading.Thread(target=run, name=f"at {host}")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def set_cuts_blocking(self, cuts: Iterable[Cut]) -> None:
        """Drop the packets of these pairs, and of no others."""
        wanted = set(cuts)
        lines = [f"rule del prio {self._rule(cut)}" for cut in sorted(self._cuts - wanted)]
        lines += [
            f"rule add iif {source} to {self.address(target)} blackhole "
            f"prio {self._rule((source, target))}"
            for source, target in sorted(wanted - self._cuts)
        ]
        self._cuts = wanted
        if lines:
            _ip(lines, self.namespace(_ROUTER))

    def _rule(self, cut: Cut) -> int:
        source, target = map(self.hosts.index, cut)
        return _FIRST_RULE + len(self.hosts) * source + target

    def _build(self) -> None:
        router = self.namespace(_ROUTER)
        _ip([f"netns add {self.namespace(host)}" for host in (*self.hosts, _ROUTER)])
        for number, host in enumerate(self.hosts, 1):
            name = self.namespace(host)
            _ip([f"link add {host} netns {router} type veth peer name eth0 netns {name}"])
            lines = [f"addr add 198.18.{number}.1/24 dev {host}", f"link set {host} up"]
            _ip(lines, router)
            lines = [
                f"addr add 198.18.{number}.2/24 dev eth0",
                "link set eth0 up",
                "link set lo up",
                f"route add default via 198.18.{number}.1",
            ]
            _ip(lines, name)
        forward = Path("/proc/sys/net/ipv4/ip_forward")
        self.run_at(_ROUTER, lambda: forward.write_text("1"))


def _ip(lines: Sequence[str], namespace: str | None = None) -> None:
    """Carry out commands of ``ip``, in a namespace."""
    where = ["-n", namespace] if namespace is not None else []
    text = "\n".join([*lines, ""])
    command = ["ip", *where, "-batch", "-"]
    subprocess.run(command, input=text, check=True, capture_output=True, text=True)


def _remove(namespace: str) -> None:
    if (_NAMESPACES / namespace).exists():
        subprocess.run(["ip", "netns", "del", namespace], check=True, capture_output=True)


def _remove_left_over() -> None:
    """Remove the namespaces of test processes that were killed."""
    for path in _NAMESPACES.glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            _remove(path.name)

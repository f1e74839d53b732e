"""Every setting that is accepted acts: a test says where, and fails if nothing reads it."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketpost.broker.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES
from rocketpost.client import config as client
from rocketpost.model.group import GroupConfig
from rocketpost.model.topic import TopicConfig
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.group import GroupConfig as GroupMemberConfig
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.server.settings.tls import TlsConfig
from rocketpost.settings import keys_of
from rocketpost.store.config import StoreConfig

from . import acting

ROOT = Path(__file__).resolve().parents[2]
HIDING = Path(__file__).parent / "without_setting"
CHECK = "test_the_proof_fails_if_the_setting_is_not_read"
HANGS_AFTER = 300.0
"""Seconds after which a test counts as hung: far more than any takes, failing or not."""


class Proof(NamedTuple):
    """A setting, how to make it unread, and the test that fails then."""

    family: str
    setting: str
    hidden: str
    words: tuple[str, ...]
    test: str

    def __str__(self) -> str:
        return f"{self.family}-{self.setting}"


def _of_file(family: str, cls: type, proofs: Mapping[str, str]) -> Iterator[Proof]:
    for key, field in keys_of(cls).items():
        if key in proofs:
            hidden = f"{cls.__module__}:{cls.__name__}:{field.name}"
            yield Proof(family, key, hidden, (key, field.name), proofs[key])


def _of_members(family: str, cls: type, proofs: Mapping[str, str]) -> Iterator[Proof]:
    for name, test in proofs.items():
        words = (name, _camel(name))
        yield Proof(family, name, f"{cls.__module__}:{cls.__name__}:{name}", words, test)


def _of_attributes(family: str, cls: type, proofs: Mapping[str, str]) -> Iterator[Proof]:
    for key, test in proofs.items():
        hidden = f"{cls.__module__}:{cls.__name__}:attributes:{key}"
        yield Proof(family, key, hidden, (key,), test)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


CLIENTS = (
    (client.ClientConfig, acting.CLIENT),
    (client.ProducerConfig, acting.PRODUCER),
    (client.PullConsumerConfig, acting.PULL),
    (client.PushConsumerConfig, acting.PUSH),
    (client.LitePullConsumerConfig, acting.LITE),
)
PROOFS = [
    *_of_file("broker", BrokerConfig, acting.BROKER),
    *_of_file("store", StoreConfig, acting.STORE),
    *_of_file("member", GroupMemberConfig, acting.MEMBER),
    *_of_file("namesrv", NamesrvConfig, acting.NAMESRV),
    *_of_file("tls", TlsConfig, acting.TLS),
    *(proof for cls, proofs in CLIENTS for proof in _of_members(cls.__name__, cls, proofs)),
    *_of_members("topic", TopicConfig, acting.TOPIC),
    *_of_attributes("topic attribute", TopicConfig, acting.TOPIC_ATTRIBUTES),
    *_of_members("group", GroupConfig, acting.GROUP),
    *_of_attributes("group attribute", GroupConfig, acting.GROUP_ATTRIBUTES),
]


def own_fields(cls: type) -> set[str]:
    """Return the fields of a client's settings that are not those of every client."""
    names = {field.name for field in dataclasses.fields(cls)}
    common = {field.name for field in dataclasses.fields(client.ClientConfig)}
    return names if cls is client.ClientConfig else names - common


def test_every_setting_has_a_proof() -> None:
    """Name the test of a new one in ``acting``; it has to fail if nothing reads the setting."""
    without = acting.WITHOUT_EFFECT
    assert set(acting.BROKER) | without["broker"] == set(keys_of(BrokerConfig))
    assert set(acting.STORE) == set(keys_of(StoreConfig))
    assert set(acting.MEMBER) == set(keys_of(GroupMemberConfig))
    assert set(acting.NAMESRV) == set(keys_of(NamesrvConfig))
    assert set(acting.TLS) == set(keys_of(TlsConfig))
    for cls, proofs in CLIENTS:
        assert set(proofs) == own_fields(cls), cls.__name__
    assert set(acting.TOPIC) | without["topic"] == set(TopicConfig.__struct_fields__)
    assert set(acting.TOPIC_ATTRIBUTES) | without["topic attributes"] == set(TOPIC_ATTRIBUTES)
    assert set(acting.GROUP) | without["group"] == set(GroupConfig.__struct_fields__)
    assert set(acting.GROUP_ATTRIBUTES) == set(GROUP_ATTRIBUTES)


@cache
def functions_in(path: str) -> Mapping[str, str]:
    """Return the tests of a file by name, with what stands around them outside of tests."""
    text = (ROOT / path).read_text()
    lines = text.splitlines()
    found, spans = {}, []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("test_"):
                continue
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
            spans.append(range(first, (node.end_lineno or first) + 1))
    around = "\n".join(
        line for at, line in enumerate(lines, 1) if not any(at in span for span in spans)
    )
    return {name: f"{source}\n{around}" for name, source in found.items()}


@pytest.mark.parametrize("proof", PROOFS, ids=str)
def test_the_proof_is_a_test_that_speaks_of_the_setting(proof: Proof) -> None:
    path, _, name = proof.test.partition("::")
    assert name in functions_in(path), f"{proof.test} does not exist"
    source = functions_in(path)[name]
    assert any(word in source for word in proof.words), f"{proof.test} does not set {proof.setting}"


class Outcome(NamedTuple):
    """The exit status of a run of pytest, None if it hung, and what it printed."""

    status: int | None
    text: str


def run_tests(tests: Iterable[str], where: Path, *, seconds: float, hidden: str = "") -> Outcome:
    """Run tests in a process of their own, with a setting unread if one is named."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HIDING), os.environ.get("PYTHONPATH", "")]),
        "WITHOUT_SETTING": hidden,
        "HOME": str(where),  # paths that a setting would name have defaults there
    }
    options = ["-q", "-p", "no:cacheprovider", "-m", "", "--tb=short", f"--rootdir={ROOT}"]
    if hidden:
        options.append("-x")
    words = [sys.executable, "-m", "pytest", *options, *(f"{ROOT}/{test}" for test in tests)]
    try:
        # Elsewhere than in the checkout: a store without its path lies where it was started.
        done = subprocess.run(
            words, env=environment, cwd=where, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        return Outcome(None, str(error))
    return Outcome(done.returncode, done.stdout + done.stderr)


def is_of(test: str, line: str) -> bool:
    """Return whether a line of pytest's summary names a test, with parameters or without."""
    name = line.split()[1].partition("[")[0]
    return name.endswith(test.removeprefix("tests"))


@pytest.fixture(scope="session")
def failing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    """Run the tests that are to be tried as they are; return those that fail even so."""
    wanted = {
        item.callspec.params["proof"].test
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == CHECK
    }
    where = tmp_path_factory.mktemp("unhidden")
    done = run_tests(sorted(wanted), where, seconds=HANGS_AFTER * len(wanted))
    assert done.status in (0, 1), done.text
    lines = [line for line in done.text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return {test: done.text for test in wanted for line in lines if is_of(test, line)}


@pytest.mark.long
@pytest.mark.parametrize("proof", PROOFS, ids=str)
def test_the_proof_fails_if_the_setting_is_not_read(
    proof: Proof,
    tmp_path: Path,
    failing: Mapping[str, str],
    record_property: Callable[[str, object], None],
) -> None:
    record_property("kind", proof.family)
    record_property("setting", proof.setting)
    assert proof.test not in failing, f"{proof.test} fails as it is:\n{failing[proof.test]}"
    done = run_tests([proof.test], tmp_path, seconds=HANGS_AFTER, hidden=proof.hidden)
    assert done.status == 1, f"{proof.test} does not fail without {proof.setting}:\n{done.text}"

"""Filter expressions: the same verdict as RocketMQ's own filter module, thousands of times."""

from __future__ import annotations

import base64
import importlib.util
import os
import random
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from interop.jvm import JAVA_HOME_DIR, classpath, java_command
from interop.servers import SERVER_PROFILE
from rocketpost.codec.bloom import bloom_positions, bloom_shape
from rocketpost.codec.properties import encode_properties
from rocketpost.errors import FilterError
from rocketpost.filter import compile_filter

pytestmark = pytest.mark.interop

EXPRESSIONS: Final = 6_000
MAPS: Final = 8
REFERENCE: Final = Path(__file__).parents[1] / "unit" / "filter" / "reference.py"
SOURCE: Final = JAVA_HOME_DIR / "src" / "rocketpost" / "judging" / "Judge.java"

ODD: Final = (
    *("a = 1 b = 2", "a = 007", "a LIKE 'x'", "a = 1 -- x", "a = 0L", "a = 1;", "a == 1", "a != 1"),
    *("", " ", "a", "NOT a", "5", "'x'", "NULL", "TRUE", "-5", "-a", "- -5 = 5", "a = -5", "()"),
    *("'abc' CONTAINS 'b'", "(a = 1) CONTAINS 'b'", "5 CONTAINS '5'", "a CONTAINS b"),
    *("a IN ('1') IN ('1')", "a IN ('5') CONTAINS 'b'", "+a IN ('5')", "(a) IN ('5')"),
    *("a BETWEEN 5 AND -5", "a BETWEEN -5 AND 5", "a BETWEEN b AND 5", "1 BETWEEN 0 AND 2"),
    *("a = b = TRUE", "a IS NULL IS NULL", "a IS NULL = TRUE", "TRUE = TRUE", "1 = 1.0", "1 < 2"),
    *(
        "a > 5 > 2",
        "NOT NOT a",
        "NOT (NULL)",
        "a = 5.",
        "a = .5e1",
        "a = 5e",
        "a=1OR b=2",
        "a=5.E0",
    ),
    *("a = 'x''y'", "a = 'x", "/* a */ a = 1", "/* a", "a = 1 /* x **/", "a\n=\r1\f", "a = 1,"),
    *("$d > 1", "_c > 1", "a.b = 1", "ä = 1", "TRUE = a", "a = TRUE", "(a = 1) = b", "b = (a = 1)"),
    *("a > 2147483648", "a > -2147483648", "a = 9223372036854775808", "a = -9223372036854775807"),
)


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("filter_reference", REFERENCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def judge(java: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the Java judge."""
    classes, libraries = tmp_path_factory.mktemp("judging"), classpath(SERVER_PROFILE)
    command = ["javac", "-proc:none", "-nowarn", "-d", str(classes), "-cp", libraries]
    subprocess.run([*command, str(SOURCE)], check=True, capture_output=True)
    return os.pathsep.join([str(classes), libraries])


def ask(judge: str, home: Path, lines: list[str]) -> list[str]:
    command = java_command(judge, "rocketpost.judging.Judge", heap="256m", home=home)
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(lines)
    return answers


def encoded(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def ours(text: str, maps: list[dict[str, str]]) -> str:
    """Return our verdicts as the Java side writes them; a remark about what we alone refuse."""
    try:
        expression = compile_filter(text)
    except FilterError as error:
        trailing = "is complete before" in error.reason or "does not start with 0" in error.reason
        return "E, for what follows" if trailing else "E"
    verdicts = ""
    for properties in maps:
        try:
            verdicts += {True: "T", False: "F", None: "U"}[expression.evaluate(properties)]
        except ValueError:
            verdicts += "X"
    return verdicts


def test_verdicts_are_those_of_java(judge: str, reference: ModuleType, tmp_path: Path) -> None:
    chance = random.Random(20240611)
    texts = [*ODD]
    texts += [
        reference.render(reference.some_tree(chance, chance.randint(1, 4)), chance)
        for _ in range(EXPRESSIONS)
    ]
    maps = [[reference.some_properties(chance) for _ in range(MAPS)] for _ in texts]
    lines = [
        "\t".join([encoded(text), *(encoded(encode_properties(each)) for each in given)])
        for text, given in zip(texts, maps, strict=True)
    ]
    seen: set[str] = set()
    wrong = []
    for text, given, theirs in zip(texts, maps, ask(judge, tmp_path, lines), strict=True):
        mine = ours(text, given)
        seen.update(theirs)
        if mine == theirs or mine == "E, for what follows":
            continue
        wrong.append((text, mine, theirs, given))
    assert seen == set("TFUXE")
    assert not wrong, f"{len(wrong)} of {len(texts)} differ: {wrong[:5]}"


def test_bits_of_groups_are_those_of_java(judge: str, tmp_path: Path) -> None:
    chance = random.Random(20240612)
    letters = "abcdefgXYZ0189_%-#größe中"
    texts = ["G#T", "", *("".join(chance.choices(letters, k=n % 50)) for n in range(500))]
    shape = bloom_shape(20, 32)
    answers = ask(judge, tmp_path, [f"bloom\t{encoded(text)}" for text in texts])
    for text, answer in zip(texts, answers, strict=True):
        assert answer == f"{shape.bit_count} {bloom_positions(text, shape)}", text

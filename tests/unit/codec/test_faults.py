from __future__ import annotations

import re
from pathlib import Path

from rocketpost import errors
from rocketpost.codec import faults
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.faults import TopicNotExist, UnknownFault, fault_for
from rocketpost.errors import Fault


def test_each_class_has_the_code_that_its_line_names() -> None:
    source = Path(errors.__file__).read_text()
    found = re.findall(r"class (\w+)\(Fault\):.*?\n    code = (\d+)  # (\w+)\n", source, re.S)
    known = {cls.__name__ for cls in Fault.__subclasses__()} - {"UnknownFault"}
    assert {name for name, _, _ in found} == known
    for name, number, constant in found:
        assert int(number) == ResponseCode[constant], name
        assert type(fault_for(int(number), "why")) is getattr(errors, name)


def test_a_code_without_a_class_keeps_its_number() -> None:
    assert str(fault_for(9999, None)) == "code 9999: "
    assert isinstance(fault_for(9999, "why"), UnknownFault)


def test_users_find_every_refusal_among_the_errors() -> None:
    assert set(faults.__all__) - {"fault_for"} <= set(errors.__all__)
    assert errors.TopicNotExist is TopicNotExist


def test_guides_name_no_module_that_is_not_public() -> None:
    guides = Path(__file__).parents[3].joinpath("docs", "guide").glob("*.md")
    assert [path.name for path in guides if "rocketpost.codec" in path.read_text()] == []

from __future__ import annotations

import pytest

from rocketpost.model.client_version import version_text


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (213, "V4_0_0"),
        (317, "V4_5_2"),
        (399, "V4_9_3"),
        (401, "V4_9_4"),
        (413, "V5_0_0"),
        (441, "V5_1_4"),
        (478, "V5_3_3_SNAPSHOT"),
        (479, "V5_3_3"),
        (121, "V(121)"),
    ],
)
def test_versions_have_names(ordinal: int, name: str) -> None:
    assert version_text(ordinal) == name

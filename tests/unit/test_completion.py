from __future__ import annotations

import pytest

from rocketpost.admin.main import mqadmin
from rocketpost.cli import rocketpost
from rocketpost.completion import SHELLS, completion_script

COMMANDS = (("rocketpost", rocketpost), ("mqadmin", mqadmin))


@pytest.mark.parametrize("shell", SHELLS)
def test_one_script_serves_all_commands(shell: str) -> None:
    text = completion_script(shell, *COMMANDS)
    for name, _ in COMMANDS:
        assert f"_{name.upper()}_COMPLETE" in text


def test_zsh_loads_one_file_for_all_commands() -> None:
    text = completion_script("zsh", *COMMANDS)
    assert text.startswith("#compdef rocketpost mqadmin\n")
    assert text.count("#compdef") == text.count("zsh_eval_context") == 1
    for name, _ in COMMANDS:
        assert f"\n_{name}_completion() {{\n" in text
        assert f"        {name}) _{name}_completion ;;\n" in text
        assert f"    compdef _{name}_completion {name}\n" in text

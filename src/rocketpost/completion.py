"""Scripts that complete the words of ``rocketpost`` and ``mqadmin`` in a shell.

One script serves both commands. A shell runs it at its start, or zsh loads it as a file when one of
the commands is completed for the first time: the first line of the file names both.
"""

from __future__ import annotations

import re
from typing import Final

import click
from click.shell_completion import get_completion_class

SHELLS: Final = ("bash", "zsh", "fish")
_COMPDEF: Final = re.compile(r"#compdef \w+\n")
_ZSH_END: Final = re.compile(r"if \[\[ \$zsh_eval_context.*", re.DOTALL)


def completion_script(shell: str, *commands: tuple[str, click.Command]) -> str:
    """Return the script for a shell.

    Args:
        shell: One of ``SHELLS``.
        commands: The commands, each with its name.
    """
    found = get_completion_class(shell)
    assert found is not None
    parts = [
        found(command, {}, name, f"_{name.upper()}_COMPLETE").source() for name, command in commands
    ]
    if shell != "zsh":
        return "\n".join(parts)
    # Each part of click's is made to be the only one of its file: loaded by zsh, each would run.
    names = [name for name, _ in commands]
    functions = [_ZSH_END.sub("", _COMPDEF.sub("", part)).strip() for part in parts]
    cases = [f"        {name}) _{name}_completion ;;" for name in names]
    registered = [f"    compdef _{name}_completion {name}" for name in names]
    return "\n".join(
        [
            f"#compdef {' '.join(names)}",
            *(f"\n{function}" for function in functions),
            "\nif [[ $zsh_eval_context[-1] == (loadautofunc|shfunc) ]]; then",
            "    case $service in",
            *cases,
            "    esac",
            "else",
            *registered,
            "fi\n",
        ]
    )

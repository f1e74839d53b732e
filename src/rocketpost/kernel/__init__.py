"""Hot loops on primitives: ordinary Python that Cython may compile.

Importing this package decides whether its modules are loaded compiled or from their sources.
"""

from __future__ import annotations

from typing import Final

from rocketpost.kernel.form import Form, choose_form, hide_compiled

FORM: Final[Form] = choose_form(__path__[0])
"""The form of the kernel in this process."""

if not FORM.is_compiled:
    hide_compiled(__path__[0])

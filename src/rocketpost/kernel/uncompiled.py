"""Stand-ins for Cython's names, for a kernel that runs uncompiled."""

from __future__ import annotations

from typing import Any

compiled = False
NULL: Any = None
PyBytes_AS_STRING: Any = None
PyBytes_FromStringAndSize: Any = None
address: Any = None
can_fold: Any = None
cast: Any = None
fold: Any = None
memchr: Any = None
memcmp: Any = None
memcpy: Any = None
memmove: Any = None
p_char: Any = None
p_uchar: Any = None

"""Stand-ins for Cython's names, for a kernel that runs uncompiled."""

from __future__ import annotations

from typing import Any

compiled = False
address: Any = None
cast: Any = None
memchr: Any = None
memcmp: Any = None
memmove: Any = None
NULL: Any = None
p_uchar: Any = None
memcpy: Any = None
PyBytes_AS_STRING: Any = None
PyBytes_FromStringAndSize: Any = None

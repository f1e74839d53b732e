"""What a kernel names that only Cython knows, for where it runs as it is."""

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

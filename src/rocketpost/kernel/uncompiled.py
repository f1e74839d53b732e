"""What a kernel names that only Cython knows, for where it runs as it is."""

from __future__ import annotations

from typing import Any

compiled = False
address: Any = None
memcmp: Any = None
memmove: Any = None

"""The base of all clients: start, stop and ``async with``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifecycle(ABC):
    """An object that runs between :meth:`start` and :meth:`stop`; ``async with`` calls both."""

    @abstractmethod
    async def start(self) -> None:
        """Start running."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop, and wait for the end."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

"""What is closed at the end of a ``with``."""

from __future__ import annotations

from typing import Self


class Closing:
    """Calls `close` at the end of a ``with``."""

    def close(self) -> None:
        """Let go of everything."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

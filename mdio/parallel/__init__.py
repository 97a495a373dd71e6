"""Executors and gathers: how blocks of work are spread over processes and ranks."""

from typing import Literal

GatherMode = Literal["blocking", "nonblocking", "one-sided"]
GATHERS: tuple[GatherMode, ...] = ("blocking", "nonblocking", "one-sided")
"""Ways in which ranks bring their rows together; see `mdio.parallel.gather`."""

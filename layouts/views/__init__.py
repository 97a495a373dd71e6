"""Layouts over layouts: some of the frames and atoms, several files as one."""

from mdio.core.errors import PlanError

KEEP_ALL = "keep-all"
OVERLAPS = ("keep-last", "keep-first", "error", KEEP_ALL)
"""How frames whose times several files have are treated. By default `keep-last`, as restarts want
it, but not where that would lose the greater part of what there is."""


def check_overlap(overlap: str | None) -> None:
    """Refuse what is none of `OVERLAPS`, nor None, the default; raises PlanError."""
    if overlap is not None and overlap not in OVERLAPS:
        raise PlanError(f"the overlap is {overlap!r}; give one of {', '.join(OVERLAPS)}")

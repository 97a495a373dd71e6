"""Layouts over layouts: some of the frames and atoms, several files as one."""

from mdio.core.errors import PlanError

KEEP_ALL = "keep-all"
OVERLAPS = ("keep-last", "keep-first", "error", KEEP_ALL)
"""What is done with frames whose times are in several files. The default is `keep-last`, which fits
restarts, but an error where that would drop frames without replacement."""


def check_overlap(overlap: str | None) -> None:
    """Raise PlanError unless `overlap` is one of `OVERLAPS`, or None, the default."""
    if overlap is not None and overlap not in OVERLAPS:
        raise PlanError(f"the overlap is {overlap!r}; give one of {', '.join(OVERLAPS)}")

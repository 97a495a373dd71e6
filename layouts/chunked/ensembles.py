"""Ensembles: trajectories of one system side by side in one output, each an output of its own.

What holds them together has a manifest of its own kind, which names them in order. A trajectory is
opened, read and verified as any other output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mdio.core.errors import CorruptLayoutError


class Ensemble(ABC):
    """Makes one output of several.

    `path`: the output's temporary name; nothing is there. `target`: what it will be called.
    """

    in_parts: ClassVar[bool] = False
    """Whether the trajectories lie in the folder of parts beside the output."""

    def __init__(self, path: Path, target: Path) -> None:
        from uuid import uuid4  # an analysis makes no ensemble

        self.path, self.target = path, target
        self.uuid = str(uuid4())

    @abstractmethod
    def create(self) -> None:
        """Make the folder for the trajectories; raises OSError."""

    @abstractmethod
    def member(self, label: str, *, final: bool = False) -> Path:
        """Return where a trajectory is to be written, or `final`, where it will be."""

    @abstractmethod
    def seal(self, labels: Sequence[str]) -> None:
        """Write what holds together those that are there, in order; raises OutputError."""

    def manifest(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the manifest."""
        return {
            "format": "mdio",
            "format_version": 1,
            "layout": "ensemble",
            "uuid": self.uuid,
            "members": list(labels),
        }


def labels_in(manifest: Mapping[str, Any]) -> list[str]:
    """Return the labels that a manifest names, in order; none if it is not of an ensemble."""
    members = manifest.get("members") if manifest.get("layout") == "ensemble" else None
    return [*map(str, members)] if isinstance(members, list) else []


def check_members(path: Path, members: Mapping[str, Path], holding: str | None = None) -> None:
    """Raise CorruptLayoutError if a trajectory of the ensemble at `path` is missing.

    `members`: each with its file, or folder; `holding`: a file that such a folder has.
    """
    for label, member in members.items():
        if label in ("", ".", "..") or "/" in label or "\0" in label:
            raise CorruptLayoutError(
                f"{path}: its manifest has {label!r} among the names of trajectories of the "
                "ensemble, which is none; convert it again"
            )
        there = member if holding is None else member / holding
        if not there.exists():
            raise CorruptLayoutError(
                f"{path}: the trajectory {label!r} of the ensemble is missing ({member}); put it "
                "back, or convert it again"
            )

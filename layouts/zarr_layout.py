"""Zarr trees: our own (v3), read without zarr, and H5MD trees of others (v3; v2: ZarrMD)."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.contents import Contents, ContentsLayout
from mdio.layouts.zarr_metadata import METADATA, read_metadata
from mdio.layouts.zarr_own import OwnTree

__all__ = ["ZarrLayout", "written_by_mdio"]

V2_METADATA = (".zgroup", ".zmetadata")


def _manifest_in(root: Mapping[str, Any]) -> bool:
    attributes = root.get("attributes")
    return isinstance(attributes, dict) and "mdio" in attributes


def written_by_mdio(path: str | PathLike[str]) -> bool:
    """Return whether a folder is a Zarr tree that mdio wrote; False for whatever else is there."""
    folder = Path(path)
    try:
        return folder.is_dir() and _manifest_in(read_metadata(folder))
    except OSError:
        return False


class ZarrLayout(ContentsLayout):
    """A Zarr tree with H5MD's groups.

    Parameters
    ----------
    path
        Folder.
    group : str, optional
        Particle group that is the trajectory; by default the full system, and in trees of others
        ``trajectory`` or else the first group.
    convert_units : bool, optional
        For trees of others: whether their numbers are in units they name and are converted (the
        default), or are taken as they are.
    """

    name: ClassVar[str] = "zarr"
    suffixes: ClassVar[tuple[str, ...]] = (".zarr", ".zarrmd")
    known_options = frozenset({"group", "convert_units"})

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it is a folder that has, or is named as if it had, Zarr metadata.

        A tree whose writer was killed has no metadata at its root, and is to be refused by name.
        """
        if not path.is_dir():
            return False
        return (
            any((path / name).is_file() for name in (METADATA, *V2_METADATA))
            or path.suffix.lower() in cls.suffixes
        )

    def _open(self) -> TrajectoryInfo:
        if not self.path.is_dir():
            raise SourceError(f"{self.path}: no such folder")
        group = self.options.get("group")
        if (self.path / METADATA).is_file():
            root = read_metadata(self.path)
            own = _manifest_in(root)
        elif any((self.path / name).is_file() for name in V2_METADATA):
            own = False
        else:
            raise CorruptLayoutError(
                f"{self.path}: it has no {METADATA}, which is written last; the conversion that "
                "made it did not end, convert the source anew"
            )
        tree: Contents
        if own:
            tree = OwnTree(self.path, root, group)
        else:
            from mdio.layouts.zarr_foreign import ForeignTree  # needs zarr

            convert_units = bool(self.options.get("convert_units", True))
            tree = ForeignTree(self.path, group, convert_units=convert_units)
        self._contents = tree
        return tree.info(self.name)

"""Zarr trees: mdio's own (v3), read without zarr, and H5MD trees of others (v3; v2: ZarrMD)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mdio.core.errors import CorruptLayoutError, MdioError, PlanError, SourceError, one_line
from mdio.core.files.store import require_disk, to_path
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.backend import BackendLayout
from mdio.layouts.base import FormatFacts
from mdio.layouts.codecs.quantised import PACKING_CODECS
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.tree import (
    METADATA,
    parse_metadata,
    read_metadata,
    read_node,
)

if TYPE_CHECKING:
    from mdio.layouts.backend import Backend

V2_METADATA = (".zgroup", ".zmetadata")
MAX_TRIES = 5
DAMAGE_ERRORS = (OSError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""Errors that unforeseen damage to a tree may raise."""


def _has_manifest(root: Mapping[str, Any]) -> bool:
    attributes = root.get("attributes")
    return isinstance(attributes, dict) and "mdio" in attributes


def written_by_mdio(path: str | PathLike[str]) -> bool:
    """Return whether a folder is a Zarr tree that mdio wrote; False for anything else."""
    try:
        with Folder(to_path(path)) as root:
            return _has_manifest(read_metadata(root))
    except OSError:
        return False


class ZarrLayout(BackendLayout):
    """A Zarr tree with H5MD's groups.

    Whatever is read of trees of mdio is compared with the tree's checksums (see
    `mdio.layouts.zarr.own`). `check` covers every file of mdio's, but not files that other
    programs add. If one has changed a ``zarr.json`` (attributes, also those at the root beside the
    manifest, or consolidated metadata), `check` reports it, and the tree can still be read.

    `group` (str, optional): particle group that is the trajectory; by default the full system, and
    in trees of others ``trajectory`` or else the first group. For trees of others: `convert_units`
    (bool): whether numbers are converted from the units that the tree names (the default);
    `length_unit` (str): that of lengths, if it names none; times are then in ps.
    """

    name: ClassVar[str] = "zarr"
    facts = FormatFacts(
        suffixes=(".zarr", ".zarrmd"),
        options=frozenset({"group", "convert_units", "length_unit"}),
        continuation="mdio.layouts.continuation:ZarrContinuation",
        members="mdio.layouts.zarr.tree:members_in",
        imported_modules=("mdio.layouts.zarr.own",),
        is_folder=True,
        single_frame_compressions=PACKING_CODECS,
        stores_columns_exactly=True,
        keeps_topology=True,
        reads_remote=True,
    )

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it is a folder with Zarr metadata, or with the suffix of a Zarr tree.

        A tree whose writer was killed has no metadata at its root; opening it raises a clear error.
        """
        if not path.is_dir():
            return False
        return (
            any((path / name).is_file() for name in (METADATA, *V2_METADATA))
            or path.suffix.lower() in cls.facts.suffixes
        )

    def _open_from_scratch(self) -> TrajectoryInfo:
        for _ in range(MAX_TRIES):
            root = Folder(self.path)
            try:
                self._backend = self._open_tree(root)
                return self._backend.info(self.name)
            except BaseException as error:
                damage = error if isinstance(error, MdioError) else self._damage_error(error)
                # If another tree has just taken the name, that one is complete: open it instead.
                was_replaced = isinstance(damage, CorruptLayoutError) and root.is_replaced()
                root.close()
                self._backend = None
                if not was_replaced:
                    if damage in (None, error):
                        raise
                    raise damage from error
        raise CorruptLayoutError(
            f"{self.path}: replaced by another output {MAX_TRIES} times while it was opened"
        )

    def _open_tree(self, root: Folder) -> Backend:
        """Return the reader of the tree, mdio's or another program's."""
        group = self.options.get("group")
        if (self.path / METADATA).exists():
            text = read_node(root, "")
            node = parse_metadata(self.path / METADATA, text)
            if _has_manifest(node):
                manifest = node["attributes"]["mdio"]
                from mdio.layouts.chunked.own import labels_in  # only reading needs these
                from mdio.layouts.zarr.own import OwnTree

                if labels := labels_in(manifest):  # an ensemble on disk is not opened here
                    raise PlanError(
                        f"{self.path}: an ensemble of {len(labels)} trajectories, which is opened "
                        f"on disk only; open one of them, such as {self.path / labels[0]}"
                    )
                return OwnTree(root, text, manifest, group, verify=self.verify)
        elif not any((self.path / name).is_file() for name in V2_METADATA):
            raise CorruptLayoutError(
                f"{self.path}: it has no {METADATA}, which is written last: it is not mounted on "
                f"{os.uname().nodename}, or the conversion that made it did not finish; look "
                "whether other machines see more, else convert the source again"
            )
        root.close()
        require_disk(
            self.path,
            "Zarr trees of other programs are not read from object stores; copy it here",
            SourceError,
        )
        from mdio.layouts.zarr.foreign import ForeignTree  # needs zarr

        return ForeignTree(self.path, self.options)

    def _damage_error(self, error: BaseException, failure: str = "") -> CorruptLayoutError | None:  # noqa: ARG002
        if not isinstance(error, DAMAGE_ERRORS):
            return None
        return CorruptLayoutError(
            f"{self.path}: cannot be read ({one_line(error)}); mdio verify says what is damaged"
        )

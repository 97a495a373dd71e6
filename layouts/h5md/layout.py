"""H5MD files: mdio's own, read by plain system calls, and those of others, read through h5py.

An ensemble is a folder of them. The frames of files of earlier versions may be in parts
(`mdio.layouts.h5md.parts`).

Format: H5MD 1.1 (de Buyl, Colberg, Hoefling 2014, 10.1016/j.cpc.2014.01.018). h5py is imported
when the first file is opened.
"""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mdio.core.errors import FOREIGN_ERRORS, CorruptLayoutError, MdioError, SourceError, one_line
from mdio.core.files.checks import (
    ENSEMBLE_MANIFEST,
    file_beside_parts,
    manifest_in,
    own_parts_folder,
    parts_folder,
)
from mdio.core.files.store import store_at, to_path
from mdio.core.frames import FIELDS, TrajectoryInfo
from mdio.layouts.backend import BackendLayout
from mdio.layouts.base import FormatFacts
from mdio.layouts.h5md.opening import is_hdf5, is_sealed, open_hdf5

if TYPE_CHECKING:
    import h5py

    from mdio.layouts.backend import Backend


def _created_by_mdio(file: h5py.File) -> bool:
    """Return whether the file names mdio as its creator, in a string of fixed length."""
    from mdio.layouts.h5md.io import CREATOR

    creator = file.get("h5md/creator")
    if creator is None or "name" not in creator.attrs:
        return False
    is_variable = creator.attrs.get_id("name").get_type().is_variable_str()
    return not is_variable and creator.attrs["name"] == CREATOR.encode()


def _is_h5md_with(path: Path, node: str, *, if_damaged: bool = False) -> bool:
    """Return whether `path` is HDF5 with `node`, a sealed file of mdio, or an ensemble.

    `if_damaged`: returned for an HDF5 file that is too damaged to tell.
    """
    if path.is_dir():
        return (path / ENSEMBLE_MANIFEST).is_file()
    if not path.is_file():
        return False
    if is_sealed(path):
        return True
    try:
        with open_hdf5(path) if is_hdf5(path) else nullcontext(()) as file:
            return node in file
    except (OSError, RuntimeError, KeyError, ValueError):
        return if_damaged


def written_by_mdio(path: str | PathLike[str]) -> bool:
    """Return whether mdio wrote an H5MD file, or an ensemble of them; False for anything else."""
    return _is_h5md_with(to_path(path), "mdio/manifest")


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a file or an ensemble of mdio; empty for anything else."""
    from mdio.layouts.h5md.io import manifest_text

    try:
        if path.is_dir():
            return manifest_in(path) or {}
        with open_hdf5(path) as file:
            manifest = json.loads(manifest_text(file, path))
    except (OSError, LookupError, RuntimeError, ValueError, TypeError, AttributeError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def find_parts_folder(path: Path) -> Path | None:
    """Return the folder beside an output at `path` that holds its parts; None if it has none."""
    return (
        own_parts_folder(path, _read_manifest(path).get("parts_folder")) if is_hdf5(path) else None
    )


def find_members(path: Path) -> dict[str, Path]:
    """Return the files of an ensemble's trajectories by label; empty if it is not an ensemble."""
    if not path.is_dir() and (is_sealed(path) or not is_hdf5(path)):
        return {}
    manifest, folder = _read_manifest(path), path
    if "members" not in manifest:
        return {}
    from mdio.layouts.chunked.own import check_members, labels_in

    if not path.is_dir():  # earlier versions made a file of links to files in a folder beside it
        name = str(manifest.get("parts_folder"))
        file = file_beside_parts(path, name)
        folder = own_parts_folder(file, name) or parts_folder(file)
    members = {label: folder / f"{label}.h5md" for label in labels_in(manifest)}
    check_members(path, members)
    return members


class H5MDLayout(BackendLayout):
    """An H5MD file.

    `group` (str, optional): particle group that is the trajectory; by default the full system, and
    the first group in files of others. For files of others: `convert_units` (bool): whether numbers
    are converted from the units that the file names (the default); `length_unit` (str): that of
    lengths, if it names none; times are then in ps.
    """

    name: ClassVar[str] = "h5md"
    facts = FormatFacts(
        suffixes=(".h5md", ".h5"),
        options=frozenset({"group", "convert_units", "length_unit"}),
        continuation="mdio.layouts.continuation:H5MDContinuation",
        members="mdio.layouts.h5md.layout:find_members",
        parts="mdio.layouts.h5md.layout:find_parts_folder",
        imported_modules=("mdio.layouts.h5md.own",),
        stores_columns_exactly=True,
        keeps_topology=True,
        reads_remote=True,
        flavours=("gromacs",),
    )

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it is an HDF5 file with a group ``h5md``, or an ensemble of such.

        If an HDF5 file is too damaged to tell, the suffix decides, so that opening it says why.
        """
        return _is_h5md_with(path, "h5md", if_damaged=path.suffix.lower() in cls.facts.suffixes)

    @classmethod
    def uuid_at(cls, path: Path) -> str | None:
        uuid = _read_manifest(path).get("uuid")
        return uuid if isinstance(uuid, str) else None

    def _damage_error(self, error: Exception, failure: str) -> CorruptLayoutError | None:
        if not isinstance(error, FOREIGN_ERRORS):
            return None
        return CorruptLayoutError(
            f"{self.path}: {failure} ({one_line(error)}); the file is damaged: convert the source "
            "again"
        )

    def _open_from_scratch(self) -> TrajectoryInfo:
        from mdio.layouts.h5md.io import MANIFEST
        from mdio.layouts.h5md.own import OwnFile
        from mdio.layouts.h5md.parts import FileInParts, is_in_parts

        if not self.path.exists():
            raise SourceError(f"{self.path}: no such file")
        group = self.options.get("group")
        try:
            file = open_hdf5(self.path)
        except FOREIGN_ERRORS as error:
            raise SourceError(
                f"{self.path}: not an HDF5 file, or a truncated one "
                f"({one_line(error)}); H5MD expected: "
                + (
                    f"if nothing writes it any more, `h5clear -s {self.path}` (of HDF5's tools) "
                    "lets what was flushed be read, on a copy if in doubt"
                    if "h5clear" in str(error)
                    else "convert or copy it again"
                )
            ) from error
        try:
            backend: Backend
            # A file of mdio that has lost its manifest is recognised by its creator.
            if is_sealed(self.path) or MANIFEST in file or _created_by_mdio(file):
                with file:
                    file_class = FileInParts if is_in_parts(file) else OwnFile
                    backend = file_class(self.path, file, group, verify=self.verify)
            else:
                from mdio.layouts.h5md.foreign import ForeignFile

                backend = ForeignFile(self.path, file, self.options)
            self._backend = backend
            if "flavour" in (backend.manifest or {}):  # its units are not those in memory
                self.facts = replace(type(self).facts, rounded_fields=FIELDS)  # type: ignore[misc]
            info = backend.info(self.name)
            store_at(self.path).forget_end(self.path)
            return info
        except BaseException as error:
            with suppress(*FOREIGN_ERRORS):  # a damaged file may not close; the first error counts
                file.close()
                self._close()
            if isinstance(error, MdioError) or not isinstance(error, FOREIGN_ERRORS):
                raise
            raise SourceError(f"{self.path}: cannot be read as H5MD ({one_line(error)})") from error

"""Ensembles in H5MD: each trajectory is a file in the folder of parts, and a group in the output.

``NAME.h5md`` has ``/particles/LABEL`` for each, an external link to the full system in
``NAME.h5md.parts/LABEL.h5md``, which is an H5MD file of mdio by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py

from mdio.core.files.marks import mark_parts, owner_of, parts_for, parts_named, parts_of
from mdio.core.files.publish import flush_tree
from mdio.core.files.temporaries import temporary_for
from mdio.layouts.chunked.ensembles import Ensemble, check_members, labels_in
from mdio.layouts.h5md.disk import open_output
from mdio.layouts.h5md.file import LIBVER, create_groups
from mdio.layouts.h5md.io import FULL_SYSTEM, MANIFEST, writing


class H5MDEnsemble(Ensemble):
    """Makes a file that links to several."""

    in_parts = True

    def __init__(self, path: Path, target: Path) -> None:
        super().__init__(path, target)
        self.folder = parts_for(target, self.uuid)

    def create(self) -> None:
        """Make the folder of parts."""
        folder = self.member("x").parent
        folder.mkdir()
        mark_parts(folder, self.uuid, self.target, self.folder.name)

    def member(self, label: str, *, final: bool = False) -> Path:
        """Return the file of a trajectory."""
        built = temporary_for(parts_of(self.target.absolute()), self.path)
        return (self.folder if final else built) / f"{label}.h5md"

    def seal(self, labels: Sequence[str]) -> None:
        """Write the links and the manifest; raises OutputError."""
        folder = self.folder.name
        text = json.dumps(self.manifest(labels) | {"parts_folder": folder}).encode()
        with writing(self.path):
            with open_output(self.path, "x", libver=LIBVER) as file:
                create_groups(file, ())
                del file[f"particles/{FULL_SYSTEM}"]
                for label in labels:
                    link = h5py.ExternalLink(f"{folder}/{label}.h5md", f"/particles/{FULL_SYSTEM}")
                    file[f"particles/{label}"] = link
                file.create_dataset(MANIFEST, data=text, dtype=h5py.string_dtype(length=len(text)))
            flush_tree(self.path)


def members_of(path: Path, manifest: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files of an ensemble, in order; none if the manifest is of something else.

    Raises CorruptLayoutError: a file is missing.
    """
    name = str(manifest.get("parts_folder"))
    owner = owner_of(path, name)
    folder = parts_named(owner, name) or parts_of(owner)
    members = {label: folder / f"{label}.h5md" for label in labels_in(manifest)}
    check_members(path, members)
    return members

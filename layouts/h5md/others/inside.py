"""Refuses H5MD files that would show what lies elsewhere on the disk.

HDF5 follows external links, external storage and virtual datasets to any file, and shows its bytes
as numbers: those of a file from somebody else could be anything that its reader may read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py

from mdio.core.errors import SourceError
from mdio.layouts.foreign.heaps import check_heaps

__all__ = ["require_inside"]

MAX_DEPTH = 4
"""Virtual datasets of virtual datasets are followed so far."""


def require_inside(path: Path, node: Any, folder: Path | None = None, depth: int = 0) -> None:
    """Raise SourceError unless all bytes of an object lie in the folder of the opened file.

    `path`: the file that was opened. `node`: a group or dataset, however it was reached.
    """
    is_dataset = isinstance(node, h5py.Dataset)
    if node.file.filename == str(path) and not (is_dataset and (node.is_virtual or node.external)):
        return
    folder = folder or path.resolve().parent
    own = Path(node.file.filename).resolve()
    places = {str(own): own}
    sources = []
    if is_dataset:
        # HDF5 looks for external storage in the working folder, and there last for sources.
        places |= {name: Path(name).resolve() for name, *_ in node.external or ()}
        sources = list(node.virtual_sources()) if node.is_virtual else []
        for source in sources:
            name = source.file_name.replace("%%", "%")
            places[name] = own if name == "." else (own.parent / name).resolve()
    for name, lies in places.items():
        if folder not in lies.parents or not lies.is_file() or depth > MAX_DEPTH:
            raise SourceError(
                f"{path}: {node.name} lies in {name}, which is no file in the folder of this one, "
                "so it is not read; copy both into one folder and refer to it by a relative name"
            )
    if own != path.resolve():
        check_heaps(own)
    for source in sources:
        lies = places[source.file_name.replace("%%", "%")]
        with h5py.File(lies, "r", locking="best-effort") as file:
            require_inside(path, file[source.dset_name], folder, depth + 1)

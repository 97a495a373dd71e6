"""Trajectories as virtual Zarr arrays of VirtualiZarr, which refer to numbers in other files.

https://virtualizarr.readthedocs.io. Positions are references into the files; boxes, times and
steps, which are small, are in memory and are stored together with the references.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np

from mdio.core.errors import MissingExtraError, PlanError
from mdio.layouts.refs import position_tables
from mdio.layouts.registry import open_layout
from mdio.layouts.tables import ChunkTable
from mdio.layouts.views.view import read_columns

if TYPE_CHECKING:
    from xarray import Dataset


def virtual_parser(url: str, registry: Any) -> Any:
    """Parse a trajectory for VirtualiZarr, which takes this function as ``parser=``.

    The dataset has ``positions`` (frame, atom, axis), virtual, and in memory ``box`` (frame, edge)
    if there is one, and the coordinates ``time`` (ps) and ``step``. Nothing is converted: positions
    are in the file's unit, angstrom or (TRR) nm, which their attribute ``units`` names.

    Parameters
    ----------
    url
        An XTC, TRR, DCD or NetCDF-3 file, a folder of segments of these, or mdio's H5MD without
        compression: ``file://`` and a path, or an object's.
    registry
        VirtualiZarr's stores, through which the references are read.

    Returns
    -------
    virtualizarr.manifests.ManifestStore
        For `virtualizarr.open_virtual_dataset`.

    Raises
    ------
    MissingExtraError
        VirtualiZarr is not installed.
    PlanError
        Other programs cannot read the positions in place.
    SourceError, CorruptLayoutError, UnknownLayoutError
        The trajectory cannot be opened.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import XTC
    >>> from obspec_utils.registry import ObjectStoreRegistry
    >>> from obstore.store import LocalStore
    >>> from virtualizarr import open_virtual_dataset
    >>> registry = ObjectStoreRegistry({"file://": LocalStore()})
    >>> dataset = open_virtual_dataset(XTC, registry, mdio.virtual_parser)
    >>> dataset.positions.shape, dataset.positions.attrs["units"]
    ((10, 47681, 3), 'angstrom')
    """
    try:
        from virtualizarr.manifests import ManifestGroup, ManifestStore
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is not installed, and virtual arrays need VirtualiZarr: "
            "pip install 'mdio-layouts[virtual]'"
        ) from error
    is_file = url.startswith("file:")
    path = url2pathname(urlsplit(url).path) if is_file else url
    if is_file and {"#", "?"} & {*path}:
        raise PlanError(f"{url}: VirtualiZarr takes # and ? for the end of a path; rename the file")
    with open_layout(path) as layout:
        info = layout.info
        positions = _virtual_array(position_tables(layout), info.n_frames, info.n_atoms)
        columns = read_columns(layout)

    class TrajectoryStore(ManifestStore):
        """Adds the columns, which are in memory, to the virtual positions."""

        def to_virtual_dataset(self, *args: Any, **options: Any) -> Dataset:
            dataset: Dataset = super().to_virtual_dataset(*args, **options)
            if columns.box.any():
                dataset["box"] = ("frame", "edge"), columns.box, {"units": "angstrom, degree"}
            return dataset.assign_coords(
                time=("frame", columns.time, {"units": "ps"}), step=("frame", columns.step)
            )

    return TrajectoryStore(ManifestGroup({"positions": positions}), registry=registry)


def _virtual_array(tables: Sequence[ChunkTable], n_frames: int, n_atoms: int) -> Any:
    """Return the chunks of files, one after the other, as a ManifestArray."""
    from virtualizarr.manifests import ChunkManifest, ManifestArray
    from virtualizarr.manifests.utils import create_v3_array_metadata

    first = tables[0]
    paths: Any = np.concatenate(
        [np.full(table.offset.shape, table.url, np.dtypes.StringDType()) for table in tables]
    )
    manifest = ChunkManifest.from_arrays(
        paths=paths,
        offsets=np.concatenate([table.offset for table in tables]).astype(np.uint64),
        lengths=np.concatenate([table.nbytes for table in tables]).astype(np.uint64),
        validate_paths=False,
    )
    dtype = np.dtype(first.dtype)
    metadata = create_v3_array_metadata(
        shape=(n_frames, n_atoms, 3),
        data_type=dtype,
        chunk_shape=first.chunk,
        fill_value=dtype.type(np.nan),
        codecs=[] if first.codec is None else [{"name": first.codec["id"]}],
        attributes={"units": first.unit},
        dimension_names=("frame", "atom", "axis"),
    )
    return ManifestArray(metadata, manifest)

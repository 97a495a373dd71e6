"""Our own H5MD files read through parallel HDF5: by ranks, independently or collectively."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5s
from numpy.typing import NDArray

from mdio.core.errors import FOREIGN_ERRORS, CorruptLayoutError
from mdio.core.files.requests import ByteRange
from mdio.layouts.base import AtomIndices
from mdio.layouts.h5md.file import value_path
from mdio.layouts.h5md.mpio.writer import transfer_list
from mdio.layouts.h5md.own import OwnFile


class MPIOFile(OwnFile):
    """An H5MD file of mdio whose frames come through HDF5's mpio driver.

    For comparison with plain reads: HDF5 verifies no checksums of ours. Boxes, times and steps are
    read as in `OwnFile`.

    `path`, `file`, `group`: see `OwnFile`; `file` is open on all ranks and stays so until `close`
    (collective). `collective`: whether reads are collective: then all ranks read equally often, the
    same fields; a rank without frames calls `take_part` instead.
    """

    def __init__(self, path: Path, file: h5py.File, group: str | None, collective: bool) -> None:
        super().__init__(path, file, group)
        self._file: h5py.File | None = file
        self._collective = collective

    def _read_array(
        self,
        key: tuple[str, str],
        start: int,
        stop: int,
        atoms: AtomIndices | None,
        out: NDArray[np.float32],
    ) -> None:
        first, last = (0, self.arrays[key].n_atoms)
        if atoms is not None:
            first, last = int(atoms.min()), int(atoms.max()) + 1
        direct = atoms is None and out.flags.c_contiguous
        rows = out if direct else np.empty((stop - start, last - first, 3), "<f4")
        self._transfer(key, (start, first, 0), rows)
        if not direct:
            out[...] = rows if atoms is None else rows[:, atoms - first]

    def byte_ranges(
        self,
        start: int,  # noqa: ARG002
        stop: int,  # noqa: ARG002
        atoms: AtomIndices | None,  # noqa: ARG002
        fields: Sequence[str],  # noqa: ARG002
    ) -> Iterator[ByteRange]:
        """Yield nothing: HDF5 reads."""
        yield from ()

    def take_part(self, present: Mapping[str, Any], atoms: AtomIndices | None = None) -> None:
        """Read nothing while the other ranks read `atoms` of the fields in `present` (collective).

        `atoms` tell which array they read.
        """
        if atoms is not None and not atoms.size:
            return
        group, _ = self.stored_as(atoms)
        for field in present:
            self._transfer((group, field), None, np.empty((1,), "<f4"))

    def _transfer(
        self, key: tuple[str, str], first: tuple[int, int, int] | None, rows: NDArray[np.float32]
    ) -> None:
        if self._file is None:
            raise CorruptLayoutError(f"{self.path}: it has been closed")
        dataset = self._file[value_path(*key)].id
        space, memory = dataset.get_space(), h5s.create_simple(rows.shape)
        if first is None:
            space.select_none()
            memory.select_none()
        else:
            space.select_hyperslab(first, rows.shape)
        try:
            dataset.read(memory, space, rows, dxpl=transfer_list(self._collective))
        except FOREIGN_ERRORS as error:
            raise CorruptLayoutError(
                f"{self.path}: cannot be read through parallel HDF5 "
                f"({' '.join(str(error).split())}); mdio verify says what is damaged"
            ) from error

    def close(self) -> None:
        """Close the file on all ranks together (collective)."""
        super().close()
        file, self._file = self._file, None
        if file is not None:
            file.close()

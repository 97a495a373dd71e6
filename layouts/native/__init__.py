"""The formats of simulation programs that mdio writes: XTC, TRR, DCD and AMBER NetCDF."""

from __future__ import annotations

from typing import NamedTuple

from mdio.core.frames import FIELDS


class NativeFormat(NamedTuple):
    """Facts of a native format that its writer needs."""

    encoder: str
    fields: tuple[str, ...]
    max_atoms: int
    """Atoms that its size fields can count."""
    head_nbytes: int
    """Bytes of a frame in which time, step and box are, at least where mdio wrote it."""
    max_step: int | None = None
    """Largest step that it holds; None: it holds none."""


NATIVE_FORMATS = {
    "xtc": NativeFormat(
        "mdio.layouts.native.xtc:XTCEncoder", ("positions",), (1 << 31) // 12, 96, (1 << 31) - 1
    ),
    "trr": NativeFormat(
        "mdio.layouts.native.trr:TRREncoder", FIELDS, ((1 << 31) - 1) // 12, 164, (1 << 31) - 1
    ),
    "dcd": NativeFormat(
        "mdio.layouts.native.dcd:DCDEncoder", ("positions",), ((1 << 31) - 1) // 4, 64
    ),
    # 64-bit offsets, as AMBER has them
    "ncdf": NativeFormat(
        "mdio.layouts.native.netcdf.layout:NCDFEncoder", FIELDS, ((1 << 32) - 4) // 12, 64
    ),
}

# What mdio/native/kernels compiles to; mdio.core.kernels documents it and checks arguments.
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.kernels.checks import Buffer

def crc32c(data: Buffer, value: int = 0) -> int: ...
def crc32c_pieces(data: Buffer, edges: NDArray[np.int64], /) -> NDArray[np.uint32]: ...
def read_rows(
    fd: int, offset: int, rows: Buffer, sums: NDArray[np.uint32], span_nbytes: int, /
) -> bool: ...
def crc32c_joined(crcs: NDArray[np.uint32], edges: NDArray[np.int64], /) -> int: ...
def planar_to_xyz(
    planar: NDArray[np.float32],
    out: NDArray[np.float32],
    atoms: NDArray[np.int64] | None,
    swap: bool,
    /,
) -> None: ...
def xyz_to_planar(src: NDArray[np.float32], planar: NDArray[np.float32], /) -> None: ...
def copy_atoms(
    src: NDArray[np.float32],
    out: NDArray[np.float32],
    atoms: NDArray[np.int64] | None,
    swap: bool,
    scale: float,
    /,
) -> None: ...
def quantise(
    positions: NDArray[np.float32], number: float, is_xtc: bool, deltas: NDArray[np.int32], /
) -> bool: ...
def dequantise(
    deltas: NDArray[np.int32],
    number: float,
    is_xtc: bool,
    out: NDArray[np.float32],
    atoms: NDArray[np.int64] | None,
    first: int,
    last: int,
    /,
) -> None: ...
def choose_neighbours(deltas: NDArray[np.int32], /) -> NDArray[np.uint8] | None: ...
def difference_neighbours(deltas: NDArray[np.int32], kept: NDArray[np.uint8], /) -> None: ...
def sum_neighbours(
    differences: NDArray[np.int32],
    kept: NDArray[np.uint8],
    number: float,
    is_xtc: bool,
    out: NDArray[np.float32],
    atoms: NDArray[np.int64] | None,
    /,
) -> None: ...
def pack(integers: NDArray[np.int32], room: NDArray[np.uint8], /) -> int: ...
def sum_packed(
    packed: NDArray[np.uint8],
    n_frames: int,
    n_atoms: int,
    kept: NDArray[np.uint8] | None,
    number: float,
    is_xtc: bool,
    out: NDArray[np.float32],
    atoms: NDArray[np.int64] | None,
    first: int,
    last: int,
    /,
) -> None: ...
def encode_rigid(
    positions: NDArray[np.float32],
    number: float,
    is_xtc: bool,
    key_interval: int,
    section_atoms: int,
    /,
) -> tuple[bytes, NDArray[np.uint8]] | None: ...
def decode_rigid(
    description: NDArray[np.uint8],
    data: NDArray[np.uint8],
    n_frames: int,
    n_atoms: int,
    number: float,
    is_xtc: bool,
    out: NDArray[np.float32],
    atoms: NDArray[np.int64] | None,
    first: int,
    last: int,
    /,
) -> None: ...
def fold(integers: NDArray[np.int32], /) -> NDArray[np.uint16] | NDArray[np.uint32]: ...
def unfold(folded: NDArray[np.uint16] | NDArray[np.uint32], out: NDArray[np.int32], /) -> None: ...
def shuffle(data: memoryview, itemsize: int, /) -> bytes: ...
def unshuffle(data: memoryview, itemsize: int, out: memoryview, /) -> None: ...
def rmsd(
    positions: NDArray[np.float32],
    reference: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    superpose: bool,
    out: NDArray[np.float64],
    /,
) -> None: ...
def dihedrals(
    positions: NDArray[np.float32],
    quads: NDArray[np.int64],
    out: NDArray[np.float64],
    longest: NDArray[np.float64],
    /,
) -> None: ...
def cut_frames(
    positions: NDArray[np.float32],
    cells: NDArray[np.float64],
    pairs: NDArray[np.int64],
    near: float,
    out: NDArray[np.bool_],
    /,
) -> None: ...
def distances(
    positions: NDArray[np.float32],
    cells: NDArray[np.float64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    out: NDArray[np.float64],
) -> None: ...
def longest_distances(
    positions: NDArray[np.float32], pairs: NDArray[np.int64], out: NDArray[np.float64]
) -> None: ...
def within(
    positions: NDArray[np.float32],
    vectors: NDArray[np.float64],
    sources: NDArray[np.int64],
    targets: NDArray[np.int64],
    radius: float,
    out: NDArray[np.bool_],
    /,
) -> None: ...
def make_whole(
    positions: NDArray[np.float32], vectors: NDArray[np.float64], links: NDArray[np.int64], /
) -> None: ...
def gather(
    positions: NDArray[np.float32],
    vectors: NDArray[np.float64],
    atoms: NDArray[np.int64],
    starts: NDArray[np.int64],
    weights: NDArray[np.float64],
    /,
) -> None: ...
def put_in_cell(
    positions: NDArray[np.float32],
    vectors: NDArray[np.float64],
    atoms: NDArray[np.int64],
    starts: NDArray[np.int64],
    weights: NDArray[np.float64],
    /,
) -> None: ...
def centre(
    positions: NDArray[np.float32], vectors: NDArray[np.float64], picked: NDArray[np.int64], /
) -> None: ...
def follow(
    positions: NDArray[np.float32],
    vectors: NDArray[np.float64],
    last: NDArray[np.float64],
    shifts: NDArray[np.int64],
    known: bool,
    apply: bool,
    /,
) -> None: ...
def follow_steps(
    positions: NDArray[np.float32],
    vectors: NDArray[np.float64],
    last: NDArray[np.float64],
    shifts: NDArray[np.int64],
    known: bool,
    apply: bool,
    /,
) -> None: ...
def fit_sums(
    positions: NDArray[np.float32],
    picked: NDArray[np.int64],
    reference: NDArray[np.float64],
    out: NDArray[np.float64],
    /,
) -> None: ...
def turn(
    vectors: NDArray[np.float32],
    rotations: NDArray[np.float64],
    origins: NDArray[np.float64],
    to: NDArray[np.float64],
    /,
) -> None: ...
def _crc32c_all_ways(data: Any, value: int, /) -> list[int]: ...
def _plain_only(plain: bool, /) -> None: ...
def _avx2_only(avx2: bool, /) -> None: ...
def _loads_only(loads: bool, /) -> None: ...

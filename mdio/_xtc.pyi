# What mdio/native/xtc compiles to; mdio.core.xtc documents it and checks arguments.
import numpy as np
from numpy.typing import NDArray

PADDING: int

def scan(fd: int, nbytes: int) -> tuple[NDArray[np.int64], int]: ...
def parse_header(
    raw: bytes, frame: int, offset: int, n_atoms: int
) -> tuple[int, int, int, float, tuple[float, ...], float | None, int]: ...
def read_headers(
    fd: int,
    first: int,
    offsets: NDArray[np.int64],
    n_atoms: int,
    vectors: NDArray[np.float32],
    time: NDArray[np.float64],
    step: NDArray[np.int64],
) -> None: ...
def decode(
    data: NDArray[np.uint8],
    first: int,
    offsets: NDArray[np.int64],
    n_atoms: int,
    positions: NDArray[np.float32],
    vectors: NDArray[np.float32],
    time: NDArray[np.float64],
    step: NDArray[np.int64],
    atoms: NDArray[np.int64] | None,
    targets: NDArray[np.int64] | None,
    n_threads: int,
) -> None: ...
def encode(
    positions: NDArray[np.float32],
    vectors: NDArray[np.float32],
    time: NDArray[np.float32],
    step: NDArray[np.int32],
    precision: float,
) -> bytes: ...
def _plain_only(plain: bool) -> None: ...

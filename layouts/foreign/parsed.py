"""A topology as MDAnalysis parsed it, kept beside its file, as frame indexes are.

Parsing it takes a hundred times longer, and MDAnalysis has to be imported for it.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.index import Identity, store_beside, stored_beside
from mdio.core.files.reading import uncounted
from mdio.core.topology import Topology

ENDING = ".mdio-topology"
MAGIC = b"MDIOTOP1"
"""First bytes; the last character is the version of the format."""
PARSER = struct.Struct("<I")
"""What follows the file's identity: a crc of the version of MDAnalysis; then
`Topology.to_bytes`."""


def _parser_crc() -> int:
    spec = find_spec("MDAnalysis")  # which does not import it
    assert spec is not None and spec.origin is not None
    return zlib.crc32(Path(spec.origin).with_name("version.py").read_bytes())


@uncounted()
def parsed_topology(path: Path) -> Topology | None:
    """Return the topology that was stored when a file was parsed; None if the file has changed."""
    for where, then, body in stored_beside(path, MAGIC, ENDING):
        with suppress(struct.error, CorruptLayoutError, OSError):
            is_ours = PARSER.unpack_from(body) == (_parser_crc(),)
            if is_ours and Identity.of(path).matches(then, where):
                return Topology.from_bytes(bytes(body[PARSER.size :]), str(where))
    return None


@uncounted()
def state_of(path: Path) -> Identity | None:
    """Return by what a topology file is known again; None if it cannot be read."""
    try:
        return Identity.of(path)
    except OSError:
        return None


def store_parsed(path: Path, state: Identity | None, topology: Topology) -> None:
    """Store a topology beside its file, or in the cache folder, where that can be done.

    `state`: of the file, before it was parsed: it may have been replaced since.
    """
    if state is not None:
        body = PARSER.pack(_parser_crc()) + topology.to_bytes()
        store_beside(path, state, MAGIC, body, ENDING)

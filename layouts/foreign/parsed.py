"""Topologies that MDAnalysis has parsed, stored beside their files as frame indexes are.

Parsing takes a hundred times longer than reading them, and MDAnalysis has to be imported for it.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.index import Identity, load_metadata, save_metadata
from mdio.core.files.reading import without_counting
from mdio.core.topology import Topology

ENDING = ".mdio-topology"
MAGIC = b"MDIOTOP1"
"""First bytes of the file; the last character is the version of the format."""
PARSER_CRC_STRUCT = struct.Struct("<I")
"""Crc of the version of MDAnalysis, after the identity of the topology file. `Topology.to_bytes`
follows."""


def _parser_crc() -> int:
    spec = find_spec("MDAnalysis")  # does not import it
    assert spec is not None and spec.origin is not None
    return zlib.crc32(Path(spec.origin).with_name("version.py").read_bytes())


@without_counting()
def parsed_topology(path: Path) -> Topology | None:
    """Return the stored topology of a file; None without one, or if the file has changed."""
    for stored_path, stored_identity, body in load_metadata(path, MAGIC, ENDING):
        with suppress(struct.error, CorruptLayoutError, OSError):
            is_same_version = PARSER_CRC_STRUCT.unpack_from(body) == (_parser_crc(),)
            if is_same_version and Identity.of(path).matches(stored_identity, stored_path):
                return Topology.from_bytes(bytes(body[PARSER_CRC_STRUCT.size :]), str(stored_path))
    return None


@without_counting()
def identity_of(path: Path) -> Identity | None:
    """Return the identity of a topology file; None if it cannot be read."""
    try:
        return Identity.of(path)
    except OSError:
        return None


def store_parsed(path: Path, identity: Identity | None, topology: Topology) -> None:
    """Store a topology beside its file, or else in the cache folder, if either is writable.

    `identity`: of the file before it was parsed, since it may have been replaced meanwhile.
    """
    if identity is not None:
        body = PARSER_CRC_STRUCT.pack(_parser_crc()) + topology.to_bytes()
        save_metadata(path, identity, MAGIC, body, ENDING)

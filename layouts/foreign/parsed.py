"""A topology as MDAnalysis parsed it, kept beside its file, as frame indexes are.

Parsing it takes a hundred times longer, and MDAnalysis has to be imported for it.
"""

from __future__ import annotations

import struct
import zlib
from importlib.util import find_spec
from pathlib import Path

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.index import Identity, store_beside, stored_beside
from mdio.core.files.reading import uncounted
from mdio.core.topology import Topology

ENDING = ".mdio-topology"
MAGIC = b"MDIOTOP1"
"""First bytes; the last character is the version of the format."""
HEADER = struct.Struct("<8sIIQqI")
"""Magic, crc of all that follows it, then of the topology file: crc of its ends, size, mtime in ns;
crc of what tells versions of MDAnalysis apart; then `Topology.to_bytes`."""
CHECKED_FROM = 12
"""Where the bytes that the first crc is of begin."""


def _parser_crc() -> int:
    spec = find_spec("MDAnalysis")  # which does not import it
    assert spec is not None and spec.origin is not None
    return zlib.crc32(Path(spec.origin).with_name("version.py").read_bytes())


@uncounted()
def parsed_topology(path: Path) -> Topology | None:
    """Return what was stored when a topology file was parsed; None unless it is still the same."""
    for where, data in stored_beside(path, ENDING):
        try:
            magic, crc, ends_crc, nbytes, mtime_ns, parser = HEADER.unpack_from(data)
            known = magic == MAGIC and crc == zlib.crc32(data[CHECKED_FROM:])
            if not known or parser != _parser_crc():
                continue
            if Identity.of(path).holds(Identity(nbytes, mtime_ns, ends_crc), where):
                return Topology.from_bytes(data[HEADER.size :], str(where))
        except (struct.error, CorruptLayoutError, OSError):
            continue
    return None


@uncounted()
def store_parsed(path: Path, topology: Topology) -> None:
    """Store a topology beside its file, or in the cache folder, where that can be done."""
    try:
        identity = Identity.of(path)
    except OSError:
        return
    head = (identity.crc, identity.nbytes, identity.mtime_ns, _parser_crc())
    checked = HEADER.pack(MAGIC, 0, *head)[CHECKED_FROM:] + topology.to_bytes()
    crc = struct.pack("<I", zlib.crc32(checked))
    store_beside(path, MAGIC + crc + checked, ENDING)

"""A layout of mdio in a package of its own: a line of JSON for each frame."""

import json
from dataclasses import asdict

import numpy as np

from mdio.core.files.fingerprint import read_head
from mdio.core.frames import FIELDS
from mdio.layouts.base import FormatFacts
from mdio.layouts.foreign.snapshot import Snapshot
from mdio.layouts.records import RecordsLayout, RecordsWriter


class LinesLayout(RecordsLayout):
    """Reads ``NAME.lines``."""

    name = "lines"
    facts = FormatFacts(suffixes=(".lines",), writer="mdio_lines:LinesWriter")

    @classmethod
    def sniff(cls, path):
        """Return whether the first line is that of a frame."""
        return read_head(path).startswith(b'{"positions": ')

    @staticmethod
    def sizes(file):
        """Return the bytes of each line."""
        return map(len, file)

    @staticmethod
    def snapshot(record):
        """Return the frame in a line."""
        return Snapshot(**json.loads(record))


class LinesWriter(RecordsWriter):
    """Writes ``NAME.lines``."""

    name, fields, atom_nbytes = "lines", FIELDS, 60

    @staticmethod
    def record(frame):
        """Return the line of a frame."""
        return json.dumps(asdict(frame), default=np.ndarray.tolist).encode() + b"\n"

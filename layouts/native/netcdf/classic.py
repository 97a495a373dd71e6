"""Classic NetCDF files (CDF-1, CDF-2, CDF-5): the header, and reads of many records at once.

The format is that of the NetCDF Users Guide, appendix "File Format Specifications"
(https://docs.unidata.ucar.edu/nug/current/file_format_specifications.html). All numbers
are big-endian. Variables whose first dimension is unlimited are interleaved in records; records can
be copied as bytes, with a header that has their number.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.layouts.native.file import PositionalFile, RecordField
from mdio.layouts.tables import FrameTable

TYPES = {
    1: ">i1",
    2: "S1",
    3: ">i2",
    4: ">i4",
    5: ">f4",
    6: ">f8",
    7: ">u1",
    8: ">u2",
    9: ">u4",
    10: ">i8",
    11: ">u8",
}
NC_CHAR = 2
TAGS = {"dimensions": 10, "variables": 11, "attributes": 12}
MAX_ITEMS = {"dimensions": 1024, "variables": 8192, "attributes": 8192}
"""Limits of the NetCDF library; a header with more of them is damaged."""
MAX_ROW_NBYTES = 2**31 - 4
"""Larger sizes of rows do not fit into the header of CDF-1 and CDF-2 files."""
MAX_VALUE_NBYTES = 2**24
"""Most bytes of one name or attribute."""
READ_NBYTES = 512
"""Bytes of a header that are read at once."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of a classic file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    dimensions: tuple[str, ...]
    attributes: Mapping[str, Any]
    begin: int
    """Offset of the first row in the file."""
    stride: int
    """Bytes from a row (an element of the first dimension) to the next."""
    is_record: bool

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])


def _damaged(file: PositionalFile, problem: str) -> SourceError:
    return SourceError(f"{file.path}: the header is damaged: {problem}")


class _Cursor:
    def __init__(self, file: PositionalFile) -> None:
        self.file, self.offset = file, 0
        self._data, self._data_offset = b"", 0
        version = self.read(4)[3]
        if version not in (1, 2, 5):
            raise SourceError(f"{file.path}: version {version} of NetCDF; 1, 2 and 5 are known")
        self.count_format = ">q" if version == 5 else ">i"
        self.offset_format = ">i" if version == 1 else ">q"

    def read(self, nbytes: int) -> bytes:
        raw = b""
        if 0 <= nbytes <= MAX_VALUE_NBYTES:
            if self.offset + nbytes > self._data_offset + len(self._data):
                self._data_offset = self.offset
                self._data = self.file.read(self.offset, max(nbytes, READ_NBYTES))
            begin = self.offset - self._data_offset
            raw = self._data[begin : begin + nbytes]
        if len(raw) != nbytes:
            raise SourceError(
                f"{self.file.path}: the header is truncated or damaged: {nbytes} bytes expected "
                f"at {self.offset}, found {len(raw)}; the file has {self.file.nbytes}"
            )
        self.offset += nbytes
        return raw

    def number(self, struct_format: str) -> int:
        return int(struct.unpack(struct_format, self.read(struct.calcsize(struct_format)))[0])

    def count(self) -> int:
        return self.number(self.count_format)

    def read_padded(self, nbytes: int) -> bytes:
        raw = self.read(nbytes)
        self.read(-nbytes % 4)
        return raw

    def name(self) -> str:
        return self.read_padded(self.count()).decode("utf-8", "replace")

    def items(self, item_name: str) -> range:
        tag, count = self.number(">i"), self.count()
        absent = tag == 0 and count == 0
        if not absent and (tag != TAGS[item_name] or not 0 <= count <= MAX_ITEMS[item_name]):
            expected = f"expected tag {TAGS[item_name]} and at most {MAX_ITEMS[item_name]}"
            position = f"at byte {self.offset}"
            raise _damaged(self.file, f"tag {tag} and {count} {item_name} {position}, {expected}")
        return range(count)

    def dtype(self) -> tuple[int, np.dtype[Any]]:
        code = self.number(">i")
        if code not in TYPES:
            raise _damaged(self.file, f"unknown data type {code}")
        return code, np.dtype(TYPES[code])

    def attributes(self) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for _ in self.items("attributes"):
            name = self.name()
            code, dtype = self.dtype()
            raw = self.read_padded(self.count() * dtype.itemsize)
            if code == NC_CHAR:
                attributes[name] = raw.rstrip(b"\0").decode("utf-8", "replace")
            else:
                values = np.frombuffer(raw, dtype)
                attributes[name] = values[0] if values.size == 1 else values
        return attributes


class ClassicFile:
    """A classic NetCDF file, opened for reading; raises SourceError.

    `file`: closed by `close`.
    """

    def __init__(self, file: PositionalFile) -> None:
        self.file = file
        cursor = _Cursor(file)
        n_records = cursor.count()
        sizes = [(cursor.name(), cursor.count()) for _ in cursor.items("dimensions")]
        self.attributes = cursor.attributes()
        named_variables = [self._read_variable(cursor, sizes) for _ in cursor.items("variables")]
        self.header_nbytes = cursor.offset
        # A row of each is padded to 4 bytes. (Not so if there is only one, which matters for
        # bytes and shorts alone, and no trajectory has only these.)
        record_rows = [v.row_nbytes for _, v in named_variables if v.is_record]
        self.record_nbytes = sum(n + -n % 4 for n in record_rows)
        self._check_offsets(named_variables)
        self.has_record_count = n_records > 0 or not record_rows
        if not self.has_record_count:  # written to a stream, or killed: as many as the file has
            begin = min((v.begin for _, v in named_variables if v.is_record), default=file.nbytes)
            n_records = max(0, file.nbytes - begin) // max(1, self.record_nbytes)
        self.dimensions = {name: size or n_records for name, size in sizes}
        self.variables = {}
        for name, v in named_variables:
            shape = (n_records, *v.shape[1:]) if v.is_record else v.shape
            stride = self.record_nbytes if v.is_record else v.row_nbytes
            self.variables[name] = replace(v, shape=shape, stride=stride)

    def _read_variable(self, cursor: _Cursor, sizes: list[tuple[str, int]]) -> tuple[str, Variable]:
        name = cursor.name()
        n_dimensions = cursor.count()
        if not 0 <= n_dimensions <= MAX_ITEMS["dimensions"]:
            raise _damaged(self.file, f"{name!r} has {n_dimensions} dimensions")
        numbers = [cursor.count() for _ in range(n_dimensions)]
        attributes = cursor.attributes()
        dtype = cursor.dtype()[1]
        stored_nbytes = cursor.count()
        begin = cursor.number(cursor.offset_format)
        if begin < 0 or not all(0 <= n < len(sizes) and sizes[n][1] >= 0 for n in numbers):
            problem = f"{name!r} lies at {begin} and has dimensions {numbers} of {len(sizes)}"
            raise _damaged(self.file, problem)
        shape = tuple(sizes[number][1] for number in numbers)
        names = tuple(sizes[number][0] for number in numbers)
        is_record = bool(shape) and shape[0] == 0
        variable = Variable(dtype, shape, names, attributes, begin, 0, is_record)
        # The size of a row follows from the shape too. Where it cannot be counted in 32 bits, or
        # padding may or may not be meant, writers differ.
        nbytes = variable.row_nbytes
        if is_record and nbytes % 4 == 0 and nbytes < MAX_ROW_NBYTES and stored_nbytes != nbytes:
            problem = f"is said to have {stored_nbytes} bytes, but its shape makes {nbytes}"
            raise _damaged(self.file, f"a row of {name!r} {problem}")
        return name, variable

    def _check_offsets(self, named_variables: list[tuple[str, Variable]]) -> None:
        """Check that variables lie after the header and do not overlap."""
        fixed = sorted(
            (v.begin, v.row_nbytes * v.shape[0] if v.shape else v.dtype.itemsize, name)
            for name, v in named_variables
            if not v.is_record
        )
        records = sorted(
            (v.begin, v.row_nbytes, name) for name, v in named_variables if v.is_record
        )
        end = self.header_nbytes
        for begin, nbytes, name in (*fixed, *records):
            if begin < end:
                expected = f"expected {end} or beyond, where nothing else is"
                raise _damaged(self.file, f"{name!r} lies at byte {begin}, {expected}")
            end = begin + nbytes
        if records and end > records[0][0] + self.record_nbytes:
            record = f"the record that begins at {records[0][0]} and has {self.record_nbytes}"
            raise _damaged(self.file, f"{records[-1][2]!r} ends at byte {end}, beyond {record}")

    def close(self) -> None:
        self.file.close()

    def n_complete_rows(self, name: str) -> int:
        variable = self.variables[name]
        remaining_nbytes = self.file.nbytes - variable.begin - variable.row_nbytes
        if remaining_nbytes < 0 or not variable.shape:
            return 0
        return min(variable.shape[0], remaining_nbytes // max(1, variable.stride) + 1)

    def end_of_rows(self, n_rows: int) -> int:
        """Return the end of the first `n_rows` records; of rows where there are no records."""
        records = [v for v in self.variables.values() if v.is_record]
        if records:
            return min(v.begin for v in records) + n_rows * self.record_nbytes
        return max(
            v.begin + min(n_rows, v.shape[0]) * v.stride for v in self.variables.values() if v.shape
        )

    def read(
        self, start: int, stop: int, bounds_by_name: Mapping[str, tuple[int, int]]
    ) -> dict[str, NDArray[Any]]:
        """Read rows ``start:stop`` of several variables, big-endian, perhaps not contiguous.

        `bounds_by_name`: bounds along the second dimension of each variable that has one.
        Records are read whole, unless that would read many unwanted bytes. Raises SourceError.
        """
        fields = {}
        for name, bounds in bounds_by_name.items():
            v = self.variables[name]
            field = RecordField(v.begin, v.stride, v.dtype, v.shape[1:])
            fields[name] = field.part(*bounds) if field.shape else field
        return self.file.fields(start, stop, fields)


CDF5 = 5
"""Version of classic NetCDF that counts in 64 bits."""


def _part_header(raw: bytes, start: int, stop: int) -> bytes:
    """Return a header that counts records ``start:stop``."""
    count = struct.pack(">q" if raw[3] == CDF5 else ">i", stop - start)
    return raw[:4] + count + raw[4 + len(count) :]


def frame_table(path: Path, data: ClassicFile, n_frames: int) -> FrameTable | None:
    """Return the table of records; None if copies would not be valid files (without times)."""
    if "time" not in data.variables:
        return None  # without times the frames are counted, again in each file
    records = [variable for variable in data.variables.values() if variable.is_record]
    begin = min((variable.begin for variable in records), default=0)
    edges = begin + data.record_nbytes * np.arange(n_frames + 1, dtype=np.int64)
    fixed = [
        v.begin + v.dtype.itemsize * math.prod(v.shape)
        for v in data.variables.values()
        if v not in records
    ]
    if not data.variables["coordinates"].is_record or edges[-1] > data.file.nbytes:
        return None
    if max(fixed, default=0) > begin:
        return None
    header_for = partial(_part_header, data.file.peek(0, begin))
    return FrameTable(path, edges, header_for, byte_order=">")

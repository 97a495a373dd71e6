"""Every writer of ours keeps the contract of writers."""

import numpy as np
import pytest

from mdio.layouts.plan import WriteOptions
from mdio.layouts.registry import layout_class, writer_class
from mdio.testing.writing import LayoutWriterTests, WritingCase


def case_of(name: str, suffix: str | None = None, **words) -> WritingCase:
    options = WriteOptions(**words.pop("options", {}))
    file = f"out.{suffix or name}"
    return WritingCase(writer_class(name), layout_class(name), file, options, **words)


@pytest.mark.parametrize("compression", [None, "zstd"])
class TestZarr(LayoutWriterTests):
    @pytest.fixture
    def case(self, compression):
        options = {"chunk_frames": 2, "compression": compression}
        return case_of("zarr", options=options, piece_frames=4, velocities=True, forces=True)


@pytest.mark.parametrize("compression", [None, "gzip"])
class TestH5MD(LayoutWriterTests):
    @pytest.fixture
    def case(self, compression):
        options = {"chunk_frames": 2, "compression": compression}
        return case_of("h5md", options=options, piece_frames=4, velocities=True, forces=True)


class NativeTests(LayoutWriterTests):
    """Formats in units of their own, with a step between frames rather than times and steps."""

    atol = 1e-5
    has_steps = True

    def check_positions(self, actual, expected):
        np.testing.assert_allclose(actual, expected, atol=self.atol)

    def check_column(self, name, actual, expected):
        if name == "step" and not self.has_steps:
            actual, expected = np.diff(actual), 1
        np.testing.assert_allclose(actual, expected, rtol=1e-6, err_msg=name)


class TestSegments(NativeTests):
    @pytest.fixture
    def case(self):
        return case_of("segments", options={"segments": 3, "container": "trr"}, piece_frames=2)


class TestTRR(NativeTests):
    @pytest.fixture
    def case(self):
        return case_of("trr", piece_frames=4, velocities=False)


class TestNCDF(NativeTests):
    has_steps = False

    @pytest.fixture
    def case(self):
        return case_of("ncdf", piece_frames=4)


class TestDCD(NativeTests):
    has_steps = False

    @pytest.fixture
    def case(self):
        return case_of("dcd", piece_frames=4)


class TestXTC(NativeTests):
    atol = 0.0051

    @pytest.fixture
    def case(self):
        return case_of("xtc", piece_frames=4)

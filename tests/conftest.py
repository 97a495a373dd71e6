"""What all tests share: small trajectories of real data."""

import fcntl
import gc
import os
import shutil
import signal
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("MPLBACKEND", "Agg")
# There are more ranks than cores: MPICH's give way to each other while they wait.
os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "1")

# A machine with much else to do is no failure. The same examples each time: what fails was changed.
# `make explore` draws others.
ANY_TIME = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("mdio", ANY_TIME, derandomize=True)
settings.register_profile("explore", ANY_TIME, derandomize=False, print_blob=True)
settings.load_profile("mdio")


LONG = ("trust", "fuzz", "test_site.py", "test_docs.py", "test_h5md_filter.py", "test_web.py")
"""Files and folders whose tests take longest: they begin first, so that no worker ends with one."""


def pytest_collection_modifyitems(items):
    """Put long tests first."""
    items.sort(key=lambda item: not {*LONG} & {*item.path.parts})


def pytest_collection_finish():
    """Leave what was imported and collected out of later searches for garbage.

    It stays until the end, and processes that tests fork would copy it by looking through it.
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Say what the failures of a nearly full disk have in common: caches leave some of it free."""
    from mdio.core.cache import _free_nbytes_to_keep

    usage = shutil.disk_usage(tempfile.gettempdir())
    needed = _free_nbytes_to_keep(usage.total) + (1 << 30)
    if terminalreporter.stats.get("failed") and usage.free < needed:
        terminalreporter.write_line(
            f"{tempfile.gettempdir()} has {usage.free >> 20} MiB free: tests of caches fail with "
            f"less than {needed >> 20} MiB; free some, or set TMPDIR"
        )


GET_FLAGS, SET_FLAGS, TOP_OF_FOLDERS = 0x80086601, 0x40086602, 0x00020000
"""Calls and flag of ext4 on 64 bits, as of ``chattr +T``."""


@pytest.fixture(scope="session", autouse=True)
def _folders_of_tests_lie_apart(tmp_path_factory):
    """Ask ext4 not to put all folders into one place of the disk.

    It gives no number of a file out twice within minutes, and looked through all of those that
    tests had deleted there for each file that they made: a fifth of the system's time.
    """
    if sys.platform != "linux":
        return
    folder = os.open(tmp_path_factory.getbasetemp(), os.O_RDONLY)
    with suppress(OSError):
        flags = fcntl.ioctl(folder, GET_FLAGS, struct.pack("l", 0))
        (value,) = struct.unpack("l", flags)
        fcntl.ioctl(folder, SET_FLAGS, struct.pack("l", value | TOP_OF_FOLDERS))
    os.close(folder)


@pytest.fixture(autouse=True)
def _own_cache_folder(tmp_path_factory, monkeypatch):
    """Keep frame indices of read-only files out of the user's cache."""
    monkeypatch.setenv("MDIO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "index-cache"))


@pytest.fixture(scope="session", autouse=True)
def _test_files_are_parsed_once():
    """Keep the topologies of MDAnalysis' test files: a seventh of all time went to parsing them."""
    from MDAnalysis.topology.PSFParser import PSFParser
    from MDAnalysis.topology.TPRParser import TPRParser
    from MDAnalysisTests.datafiles import PSF

    parsed: dict = {}

    def once(parse):
        def parse_once(parser, **options):
            if Path(parser.filename).parent != Path(PSF).parent:
                return parse(parser, **options)
            key = str(parser.filename), *options.items()
            if key not in parsed:
                parsed[key] = parse(parser, **options)
            return parsed[key].copy()

        return parse_once

    with pytest.MonkeyPatch.context() as patch:
        for parser in (PSFParser, TPRParser):
            patch.setattr(parser, "parse", once(parser.parse))
        yield


@pytest.fixture
def ending_signals():
    """Have signals end programs: a shell may have started the tests with some of them ignored."""
    usual = {signal.SIGINT: signal.default_int_handler}
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, usual.get(n, signal.SIG_DFL)) for n in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def adk(tmp_path_factory) -> dict[str, Path]:
    """The ADK trajectory (98 frames of 3,341 atoms) as DCD, XTC, NCDF and TRR, by MDAnalysis."""
    import warnings

    import MDAnalysis as mda
    from MDAnalysisTests.datafiles import DCD, PSF

    folder = tmp_path_factory.mktemp("adk")
    paths = {"psf": Path(PSF), "dcd": folder / "adk.dcd"}
    paths["dcd"].write_bytes(Path(DCD).read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        u = mda.Universe(PSF, DCD)
        for suffix in ("xtc", "ncdf", "trr"):
            paths[suffix] = folder / f"adk.{suffix}"
            with mda.Writer(str(paths[suffix]), len(u.atoms)) as writer:
                for ts in u.trajectory:
                    # A box whose size changes, and times that do not start at zero.
                    ts.dimensions = np.array([80 + 0.1 * ts.frame, 81, 82, 90, 90, 90], "f4")
                    ts.time = 5.0 + 2.0 * ts.frame
                    writer.write(u.atoms)
    return paths

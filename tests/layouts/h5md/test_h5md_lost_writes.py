"""A disk that refuses one write, whichever: nothing damaged is published, and nothing is lost."""

import shutil
import subprocess
import sys

import pytest
from numpy.testing import assert_array_equal
from suites.h5md_cases import make_block, write_h5md

import mdio

REFUSES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static long left = -1;
void refuse(long after) { left = after; }
long remaining(void) { return left; }

static int refused(int fd) {
  char link[64], name[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, name, sizeof name - 1);
  name[n < 0 ? 0 : n] = 0;
  if (left < 0 || !strstr(name, "h5md")) return 0;
  errno = ENOSPC;
  return left-- == 0;
}

#define WRAP(NAME) \
  ssize_t NAME(int fd, const void *data, size_t n, off_t at) { \
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, #NAME); \
    return refused(fd) ? -1 : real(fd, data, n, at); \
  }
WRAP(pwrite)
WRAP(pwrite64)
"""
EVERY_WRITE = """
import ctypes, os, sys
import mdio
from mdio.core.errors import OutputError

os.fsync = lambda fd: None  # hundreds of outputs that nobody needs
refuses = ctypes.CDLL(None)
source, out, *words = sys.argv[1:]
options = {"compression": "gzip:1"} if "gzip" in words else {}
mdio.convert(source, out, stop=5, chunk_frames=4)
failed = 0
for after in range(10_000):
    refuses.refuse(after)
    try:
        mdio.convert(source, out, chunk_frames=12, force=True, **options)
    except OutputError as error:
        assert "cannot be written: the disk is full" in str(error), error
        refuses.refuse(-1)
        with mdio.open(out) as kept:
            assert kept.info.n_frames == 5, (after, error)
        failed += 1
        continue
    through = refuses.remaining() >= 0
    refuses.refuse(-1)
    assert mdio.verify(out, source).ok, after
    assert through, f"write {after} failed, and nobody noticed"
    break
print(failed)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """A library that lets one write to an H5MD file fail."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "refuses.c").write_text(REFUSES)
    compiler = shutil.which("cc") or "gcc"
    words = ["-shared", "-fPIC", "-O1", "-o", folder / "refuses.so", folder / "refuses.c", "-ldl"]
    subprocess.run([compiler, *words], check=True)
    return folder / "refuses.so"


@pytest.fixture
def source(tmp_path):
    write_h5md(tmp_path / "source.bin", make_block(), chunk_frames=23)
    return tmp_path / "source.bin"


@pytest.mark.parametrize("how", [(), ("gzip",)], ids=str)
def test_any_one_write(shim, source, tmp_path, how):
    done = subprocess.run(
        [sys.executable, "-c", EVERY_WRITE, source, tmp_path / "a.h5md", *how],
        env={"LD_PRELOAD": str(shim), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20  # all the writes there are, one after the other


CONVERTS = """
import resource, sys
from mdio.cli.main import main
limit, *words = sys.argv[1:]
_ = main(["info", words[0]])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit),) * 2)
sys.exit(main(["convert", *words]))
"""


@pytest.mark.parametrize("options", [(), ("--compression", "gzip")], ids=str)
def test_a_limit_near_the_end(source, tmp_path, options):
    """HDF5 crashed where its tables, written last, did not fit."""
    whole = tmp_path / "whole.h5md"
    mdio.convert(
        source,
        whole,
        storage=mdio.Storage(chunk_frames=1),
        compression=options[1] if options else None,
    )
    nbytes = whole.stat().st_size
    # Lengths of manifests differ by some digits.
    for limit in (nbytes - 40, nbytes - 2000, nbytes - 5000, nbytes - 12000):
        words = [source, tmp_path / "a.h5md", "--chunk-frames", "1", *options]
        done = subprocess.run(
            [sys.executable, "-c", CONVERTS, str(limit), *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1, (limit, done.stderr)
        assert "a.h5md: cannot be written: the file is larger than" in done.stderr
        assert not (tmp_path / "a.h5md").exists()
        for left in tmp_path.glob(".a.h5md.mdio-*"):  # what could be gone on with
            left.unlink()
    assert_array_equal(mdio.open(whole).read(0, 23).positions, make_block().positions)

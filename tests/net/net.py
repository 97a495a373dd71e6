"""Runs the net and prints what came of it, as JSON: ``python net.py KIND NUMBER OF``.

It knows the product by its command line and by `mdio.open` alone. Identity and time are the same in
each run, and so is the folder, as outputs have the path of their source in them.
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
import sys
import uuid
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).parent
WORK = Path("/tmp/mdio-net")
MTIME_NS = 1_764_000_000_000_000_000
VOLATILE = {"seconds", "mdio_version", "direct", "n_writes", "writes_chunks", "by_owner"}
"""Of what ``--json`` prints: what depends on the machine, or is not seen from outside."""


class _Now(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 1, tzinfo=tz)


def freeze():
    """Let everything have the same identity, time and version."""
    import datetime as module

    module.datetime = _Now
    uuid.uuid4 = lambda: uuid.UUID(int=1)
    import mdio._version
    from mdio.core.files import store

    mdio._version.__version__ = "net"
    # Manifests have the type of the file system that stripes were asked of.
    store.mounts = lambda: [(0, "/", "ext4")]


@contextmanager
def folder(name):
    """Yield a folder of this name with all sources, which is the working folder meanwhile."""
    WORK.mkdir(exist_ok=True, mode=0o777)
    with (WORK / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = WORK / name
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(HERE / "sources", path)
        for source in path.iterdir():
            os.utime(source, ns=(MTIME_NS, MTIME_NS))
        before = Path.cwd()
        os.chdir(path)
        try:
            yield path
        finally:
            os.chdir(before)
            shutil.rmtree(path)
            lock.close()
            (WORK / f"{name}.lock").unlink(missing_ok=True)


def digest(*parts):
    """Return the first characters of the SHA-256 of some bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:8]


def of_json(value):
    """Return the digest of each key, so that a difference has a name."""
    if not isinstance(value, dict):
        return digest(json.dumps(value, sort_keys=True).encode())
    kept = {key: one for key, one in value.items() if key not in VOLATILE}
    nested = {"plan", "source", "stripe"}
    return {k: of_json(v) if k in nested else of_json([v]) for k, v in kept.items()}


def of_hdf5(path):
    """Return the digest of all groups, attributes and chunks, wherever they lie in the file."""
    import h5py
    import numpy as np

    found = hashlib.sha256()

    def add(name, node):
        found.update(name.encode())
        for key in sorted(node.attrs):
            value = np.asarray(node.attrs[key])
            found.update(f"{key} {value.dtype} {value.tolist()!r}".encode())
        if isinstance(node, h5py.Dataset):
            found.update(f"{node.dtype} {node.shape} {node.chunks} {node.compression}".encode())
            if node.dtype.kind == "O":
                found.update(repr(node[()]).encode())
            elif node.compression is None or node.compression == "gzip":
                found.update(np.asarray(node[()]).tobytes())

    with h5py.File(path, "r") as file:
        add("/", file)
        file.visititems(add)
    return found.hexdigest()[:8]


def of_files(names):
    """Return the digest of each file that outputs consist of."""
    found = {}
    for name in names:
        top = Path(name)
        for path in sorted([top] if top.is_file() else top.rglob("*")):
            # Indexes are made anew where they are missing, and hold times of the file system.
            if path.is_file() and not path.name.endswith(".mdio-index"):
                is_hdf5 = path.suffix == ".h5md"
                found[str(path)] = of_hdf5(path) if is_hdf5 else digest(path.read_bytes())
    return found


def run(words):
    """Run a command; return its exit code and what it printed on stdout and stderr."""
    from mdio.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(words)
    except SystemExit as end:
        code = end.code
    return code, out.getvalue(), err.getvalue()


def convert(commands):
    """Return what came of some commands: exit codes, files, and what info and verify say."""
    before = {path.name for path in Path().iterdir()}
    codes = []
    for words in commands:
        codes.append(run([*words, "-q"])[0])
        for path in Path().rglob("*"):  # what is made may be a source of what comes next
            os.utime(path, ns=(MTIME_NS, MTIME_NS))
    made = sorted(
        name
        for name in {path.name for path in Path().iterdir()} - before
        if not name.startswith(".")
    )
    found = {"codes": codes, "made": made, "files": of_files(made)}
    for name in made:
        if Path(name).suffix in (".zarr", ".h5md", ".segments", ".refs", ".xtc", ".trr", ".dcd"):
            code, out, _ = run(["info", name, "--json"])
            found[f"info {name}"] = of_json(json.loads(out)) if code == 0 else code
        if Path(name).suffix in (".zarr", ".h5md", ".segments"):
            code, out, _ = run(["verify", name, "--json"])
            found[f"verify {name}"] = of_json(json.loads(out)) if out else code
    return found


def conversions(number, of):
    from cases import conversions as all_cases

    found = {}
    for name, commands in [*all_cases().items()][number::of]:
        with folder(name.replace(":", "-")):
            found[name] = convert(commands)
    return found


def of_block(block):
    """Return the digest of each array of a block."""
    arrays = {"positions": block.positions, "box": block.box, "time": block.time}
    arrays |= {"step": block.step, "velocities": block.velocities, "forces": block.forces}
    return digest(
        *(
            f"{name} {array.dtype} {array.shape}".encode() + array.tobytes()
            for name, array in arrays.items()
            if array is not None
        )
    )


def of_frames(universe, frames):
    """Return the digest of what MDAnalysis has of some frames, in the order asked for."""
    found = hashlib.sha256()
    for frame in frames:
        ts = universe.trajectory[frame]
        box = b"" if ts.dimensions is None else ts.dimensions.tobytes()
        found.update(ts.positions.tobytes() + box + repr((ts.frame, ts.time)).encode())
    return found.hexdigest()[:8]


def reads_of(name):
    """Return the digests of many ways to read one trajectory."""
    import MDAnalysis as mda
    import numpy as np

    import mdio

    found = {}
    with mdio.open(name) as layout:
        n, n_atoms = layout.info.n_frames, layout.info.n_atoms
        some = np.array([3, 4, 5, 21, 40, 69]) % n_atoms
        found["all"] = of_block(layout.read(0, n))
        found["one by one"] = digest(*(of_block(layout.read(k, k + 1)).encode() for k in range(n)))
        backwards = [of_block(layout.read(k, k + 1)).encode() for k in reversed(range(n))]
        found["backwards"] = digest(*backwards)
        found["atoms"] = of_block(layout.read(0, n, atoms=np.unique(some)))
        found["atoms in any order"] = of_block(layout.read(n // 2, n, atoms=some[::-1].copy()))
        found["no atoms"] = of_block(layout.read(0, n, atoms=np.empty(0, int)))
        groups = dict(layout.info.groups)
    for group in groups:
        with mdio.open(name, group=group) as layout:
            found[f"group {group}"] = of_block(layout.read(0, n))
    if Path(name).suffix not in (".gro", ".pdb", ".xyz"):
        with mdio.open([name, name], overlap="keep-all") as layout:
            found["chain"] = of_block(layout.read(n - 1, n + 1))
        cache = Path("cache")
        cache.mkdir(exist_ok=True, mode=0o700)
        for _ in range(2):
            with mdio.open(name, cache=str(cache)) as layout:
                found["cache"] = of_block(layout.read(0, n))
    universe = mda.Universe.empty(n_atoms, trajectory=True)
    universe.load_new(name, format="MDIO")
    found["iterated"] = of_frames(universe, range(n))
    found["random"] = of_frames(universe, np.random.default_rng(1).integers(0, n, 20).tolist())
    found["sliced"] = of_frames(universe, range(n)[::-3])
    universe.trajectory.close()
    for kernel, options in (("rmsd", {}), ("rmsf", {"step": 2}), ("pairs", {"stop": 3})):
        result = mdio.analyze(name, kernel=kernel, top="top.pdb", select="name CA", **options)
        found[kernel] = digest(np.ascontiguousarray(result.values.round(6)).tobytes())
    return found


def reads(number, of):
    from cases import PREPARED, READ

    with folder(f"reads-{number}-{of}"):
        for words in PREPARED:
            code, _, err = run([*words.split("|"), "-q"])
            assert code == 0, err
        return {name: reads_of(name) for name in READ[number::of]}


@contextmanager
def counted():
    """Count the reads by position of this process: yields [number, bytes]."""
    found = [0, 0]
    patched = {name: getattr(os, name) for name in ("pread", "preadv")}

    def counting(function):
        def read(*args):
            result = function(*args)
            found[0] += 1
            found[1] += result if isinstance(result, int) else len(result)
            return result

        return read

    from mdio.core.files import reading

    read_rows = reading.read_rows

    def rows_counted(fd, offset, rows, *of):
        found[0] += 1
        found[1] += rows.nbytes
        return read_rows(fd, offset, rows, *of)

    for name, function in patched.items():
        setattr(os, name, counting(function))
    reading.read_rows = rows_counted
    try:
        yield found
    finally:
        reading.read_rows = read_rows
        for name, function in patched.items():
            setattr(os, name, function)


def ways_to_read():
    """Return functions that read an open layout, by name."""
    import numpy as np

    return {
        "all": lambda layout, n: layout.read(0, n),
        "one frame": lambda layout, n: layout.read(n // 2, n // 2 + 1),
        "some atoms": lambda layout, n: layout.read(0, n, atoms=np.arange(5, 20)),
        "times": lambda layout, n: layout.read(0, n, atoms=np.empty(0, int)),
    }


REQUESTED = ("all.xtc", "all.trr", "all.dcd", "all.ncdf", "out.zarr", "floats.zarr", "out.h5md")
"""What is read with its requests counted, and `out.segments`."""


def requests(number, of):
    """Return how many reads of files, and requests of a store, reading takes, and their bytes."""
    from cases import PREPARED
    from oracles.stores import Between, client, environment, s3_server

    import mdio

    found = {}
    with folder(f"requests-{number}-{of}") as path:
        for words in PREPARED:
            run([*words.split("|"), "-q"])
        names = [*REQUESTED, "out.segments"]
        for name in names:
            for way, read in ways_to_read().items():
                with mdio.open(name) as layout:
                    n_frames = layout.info.n_frames
                    with counted() as reads:
                        read(layout, n_frames)
                found[f"file, {name}, {way}"] = reads
        with s3_server("moto", path) as port:
            bucket = client(port)
            for file in sorted(path.rglob("*")):
                if file.is_file():
                    bucket.upload_file(str(file), "bucket", str(file.relative_to(path)))
            between = Between(port)
            os.environ.update(environment(between.port))
            for name in names:
                for way, read in ways_to_read().items():
                    between.log.clear()
                    with mdio.open(f"s3://bucket/{name}") as layout:
                        read(layout, layout.info.n_frames)
                    log = list(between.log)
                    found[f"store, {name}, {way}"] = [len(log), sum(one[2] for one in log)]
            between.close()
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    sys.path.insert(0, str(HERE))
    freeze()
    kind, number, of = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    kinds = {"conversions": conversions, "reads": reads, "requests": requests}
    print(json.dumps(kinds[kind](number, of)))

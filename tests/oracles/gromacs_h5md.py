"""What GROMACS 2026's reader of H5MD does, line by line, with h5py in the place of HDF5's calls.

Line numbers are those of src/gromacs/fileio/h5md at commit b1a82ec1956e. Where its own class is
installed (``gmx-h5md/build.sh``), tests take that, too.
"""

import io
import shutil
import subprocess

import h5py
import numpy as np

PROGRAM = "gmx-h5md"
ELEMENTS = ("position", "velocity", "force")


def _frames(container, name, kind, tail):
    """h5md_datasetbase.cpp, 71 to 115, and h5md_framedataset.cpp, 57 to 88."""
    dataset = container[name]
    assert dataset.id.get_type().equal(h5py.h5t.py_create(np.dtype(kind)))
    assert dataset.shape[1:] == tail, dataset.shape
    return dataset


def read_frames(path):
    """Yield (step, time, box, arrays) as `H5md::readNextFrame` fills a frame; arrays by element."""
    with h5py.File(path, "r") as file:
        system = file["particles"]["system"]  # h5md.cpp, 507 to 512
        blocks, box, n_atoms = {}, None, None
        for name in ELEMENTS:  # 518 to 540
            if name not in system:
                continue
            n_atoms = n_atoms or system[name]["value"].shape[1]
            value = _frames(system[name], "value", "<f4", (n_atoms, 3))
            step = _frames(system[name], "step", "<i8", ())
            time = _frames(system[name], "time", "<f8", ())
            assert len(value) == len(step) == len(time)  # h5md_timedatablock.cpp, 74 to 78
            blocks[name] = (value, step, time)
            if name == "position":
                box = _frames(system["box/edges"], "value", "<f4", (3, 3))  # h5md.cpp, 528 to 531
        at = dict.fromkeys(blocks, 0)
        while True:  # 689 to 737
            steps = {n: int(b[1][at[n]]) for n, b in blocks.items() if at[n] < len(b[0])}
            if not steps:
                return
            least = min(steps.values())
            arrays, cell, time = {}, None, None
            for name in (name for name in steps if steps[name] == least):  # 740 to 796
                value, _, times = blocks[name]
                arrays[name], time = value[at[name]], float(times[at[name]])
                if name == "position":
                    cell = box[at[name]]
                at[name] += 1
            yield least, time, cell, arrays


def read_by_gromacs(path):
    """Yield as `read_frames` what `PROGRAM` gives; raises OSError where it takes no such file."""
    run = subprocess.run([PROGRAM, str(path)], capture_output=True, check=False, timeout=60)
    if run.returncode:
        raise OSError(run.stderr.decode())
    raw = io.BytesIO(run.stdout)

    def numbers(dtype, *shape):
        dtype = np.dtype(dtype)
        return np.frombuffer(raw.read(dtype.itemsize * int(np.prod(shape))), dtype).reshape(shape)

    while raw.tell() < len(run.stdout):
        n_atoms, step, *has, timed = numbers("i8", 6).tolist()
        time = float(numbers("f8", 1)[0])
        cell = numbers("f4", 3, 3) if has[0] else None
        names = [name for name, one in zip(ELEMENTS, has, strict=True) if one]
        arrays = {name: numbers("f4", n_atoms, 3) for name in names}
        yield step, time if timed else None, cell, arrays


READERS = [read_frames] + ([read_by_gromacs] if shutil.which(PROGRAM) else [])

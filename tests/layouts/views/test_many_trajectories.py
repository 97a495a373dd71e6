"""Many trajectories at once: what is read and opened of each, and more than a shell allows."""

import json
import shutil
import subprocess
import sys

import pytest

import mdio

OPENED = """
import json, resource, sys
from pathlib import Path
import mdio
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
way, folder, n_replicas = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
if way == "zarr":
    layouts = list(mdio.open_ensemble(folder / "all.zarr").values())[:n_replicas]
else:
    layouts = [mdio.open(path) for path in sorted(folder.glob("*.xtc"))[:n_replicas]]
opens = []
sys.addaudithook(lambda event, args: opens.append(args[0]) if event == "open" else None)

def counted():
    lines = Path("/proc/self/io").read_text().split()
    return len(opens), int(lines[lines.index("rchar:") + 1])

def since(before):
    return [now - then for now, then in zip(counted(), before)]

layouts[-1].info, layouts[-1].read(0, 1)  # code that is loaded when it is used
before = counted()
n_frames = sum(one.info.n_frames for one in layouts[:-1])
opening, before = since(before), counted()
for one in layouts[:-1]:
    one.read(0, 1)
print(json.dumps([n_frames, opening, since(before)]))
"""
N_REPLICAS = 100


@pytest.fixture(scope="module")
def replicas(adk, tmp_path_factory):
    """100 trajectories of five frames, as XTC and as an ensemble."""
    folder = tmp_path_factory.mktemp("replicas")
    mdio.convert(adk["xtc"], folder / "000.xtc", selection=mdio.Selection(stop=5))
    paths = [folder / f"{n:03d}.xtc" for n in range(N_REPLICAS)]
    for path in paths[1:]:
        shutil.copy(paths[0], path)
    for path in paths:  # indexes are made
        with mdio.open(path) as layout:
            assert layout.info.n_frames == 5
    mdio.convert_ensemble({f"r{path.stem}": path for path in paths}, folder / "all.zarr")
    return folder


# Files and bytes: to open a trajectory, and to read its first frame, of 12 kB in the XTC and five
# in a chunk of 53 kB. The index of an XTC holds what is known of five frames, and the file's ends.
BUDGET = {"xtc": ((4.1, 23_000), (0.1, 14_000)), "zarr": ((15.1, 7_000), (9.1, 56_000))}


@pytest.mark.parametrize("way", BUDGET)
def test_each_costs_the_same(replicas, way):
    per_replica = []
    for n_replicas in (21, N_REPLICAS):  # more than the limit of 64 open files
        command = [sys.executable, "-c", OPENED, way, str(replicas), str(n_replicas)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        n_frames, *costs = json.loads(done.stdout)
        assert n_frames == 5 * (n_replicas - 1)
        per_replica.append([[number / (n_replicas - 1) for number in cost] for cost in costs])
    for costs in per_replica:
        for cost, most in zip(costs, BUDGET[way], strict=True):
            assert all(a <= b for a, b in zip(cost, most, strict=True)), per_replica
    for few, many in zip(*per_replica, strict=True):
        assert many[0] <= few[0] * 1.1 + 0.1 and many[1] <= few[1] * 1.1 + 100, per_replica


JOINED = """
import resource, sys
import mdio
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
*paths, out = sys.argv[1:]
done = mdio.convert(paths, out, overlap="keep-all")
assert mdio.verify(out, paths, overlap="keep-all").ok
"""


def test_files_are_joined_with_a_hard_limit_on_open_ones(replicas, tmp_path):
    """Each was opened for the data of its frames, and stayed open."""
    paths = sorted(map(str, replicas.glob("*.xtc")))
    command = [sys.executable, "-c", JOINED, *paths, str(tmp_path / "a.zarr")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""A small part of the study on slow storage: two servers, two nodes, CephFS, ranks on both nodes.

It needs root, namespaces and Ceph (`bench/cluster`); where one of these is missing it says so and
is left out, as a machine that others share would have it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from suites.under_mpi import MPI

import mdio

CLUSTER = Path(__file__).resolve().parents[2] / "bench" / "cluster"


@pytest.fixture(scope="module")
def cluster():
    sys.path.insert(0, str(CLUSTER))
    folder = Path(tempfile.mkdtemp(prefix="mdio-"))  # short: sockets lie in it
    before = os.environ.get("MDIO_CLUSTER")
    os.environ["MDIO_CLUSTER"] = str(folder / "c")
    try:
        import cluster as tools
        from cephfs import CephFS
        from machines import ClusterError, begin

        if MPI is None:
            pytest.skip("left out: there is no MPI here")
        made = None
        try:
            sizes = {"servers": 2, "nodes": 2, "rate": "400mbit", "node_rate": ""}
            made = begin(folder / "c", **sizes, mount=Path("/mnt/mdio-cluster"))
            CephFS(made).up()
        except BaseException as error:
            if made is not None:
                made.down()
            if not isinstance(error, ClusterError | OSError):
                raise
            pytest.skip(f"left out: {error}")
        try:
            yield tools, made, CephFS(made)
        finally:
            made.down()
    finally:
        sys.path.remove(str(CLUSTER))
        shutil.rmtree(folder, ignore_errors=True)
        if before is None:
            del os.environ["MDIO_CLUSTER"]


def on_ranks(tools, made, words):
    """Run mdio on two ranks, one on each node, and return what it says as JSON.

    MPICH hangs in its end now and then when ranks are joined by TCP, after the results are out.
    """
    mdio_command = str(Path(MPI[1]).with_name("mdio"))
    process = subprocess.Popen(
        tools.on_ranks(made, 2, [mdio_command, *words, "--json"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=tools.mpi_environment(),
    )
    line = process.stdout.readline()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
    errors = process.communicate()[1]
    assert line.startswith("{"), errors
    return json.loads(line)


@pytest.mark.timeout(240)
def test_ranks_of_two_nodes_on_striped_storage(adk, cluster, tmp_path):
    tools, made, ceph = cluster
    folder = ceph.make_folder("work", "all")
    node = made.nodes[0]
    for name in ("xtc", "psf"):
        node.run("cp", str(adk[name]), str(folder / f"adk.{name}"))
    source, top = str(folder / "adk.xtc"), str(folder / "adk.psf")

    for name in ("adk.zarr", "adk.h5md", "adk.segments"):
        words = ["--stripe-size", "1M", "--stripe-count", "2", "--executor", "mpi"]
        found = on_ranks(tools, made, ["convert", source, str(folder / name), *words])
        assert found["n_frames"] == 98
        node.run("cp", "-r", str(folder / name), str(tmp_path))
    expected = mdio.open(adk["xtc"]).read(0, 98)
    for name in ("adk.zarr", "adk.h5md", "adk.segments"):
        assert mdio.verify(tmp_path / name).ok
        with mdio.open(tmp_path / name) as layout:
            assert np.array_equal(layout.read(0, 98).positions, expected.positions)
            stripe = layout.manifest["stripe"]
        assert stripe["file_system"] == "fuse.ceph-fuse"
        assert stripe["applied"]["stripe_count"] == 2 and stripe["reason"] is None

    alone = mdio.analyze(adk["xtc"], top=adk["psf"], kernel=mdio.RMSD(select="name CA"))
    for name in ("adk.xtc", "adk.zarr", "adk.h5md", "adk.segments"):
        tools.cold(made)
        out = folder / "rmsd.npz"
        words = ["-s", top, "--select", "name CA", "--executor", "mpi", "-o", str(out)]
        on_ranks(tools, made, ["analyze", "rmsd", str(folder / name), *words])
        node.run("cp", str(out), str(tmp_path / "rmsd.npz"))
        found = np.load(tmp_path / "rmsd.npz")["values"]
        assert np.allclose(found, alone.values, atol=1e-5)

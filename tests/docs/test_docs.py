"""What the README and docs/ tell to run does run, page by page, on real data."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from docs.pages import PAGES, ROOT, blocks_of
from MDAnalysisTests.datafiles import GRO, XTC, PDB_closed
from oracles.stores import environment as of_store
from oracles.stores import s3_server
from suites.under_mpi import MPI, needs_mpi, patience

import mdio
from mdio.core.files.remote import objects

KINDS = {"console", "bash", "python", "text", "toml"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def short(page):
    return str(page.relative_to(ROOT))


def cases():
    for page in PAGES:
        of = {block.under_mpi for block in blocks_of(page) if block.runs}
        for under_mpi in sorted(of):
            marks = [needs_mpi] if under_mpi else []
            name = short(page) + ("-under-mpi" if under_mpi else "")
            yield pytest.param(page, under_mpi, marks=marks, id=name)


@pytest.fixture
def folder(adk, tmp_path):
    """A folder with the files that pages speak of."""
    for name in ("adk", "md"):
        shutil.copy(adk["xtc"], tmp_path / f"{name}.xtc")
        shutil.copy(adk["psf"], tmp_path / f"{name}.psf")
    for name, path in (("water.gro", GRO), ("water.xtc", XTC), ("crystal.pdb", PDB_closed)):
        shutil.copy(path, tmp_path / name)
    shutil.copy(ROOT / "bench/paper/published/comet_rmsd.csv", tmp_path / "scaling.csv")
    return tmp_path


def environment(under_mpi, tools):
    """Return the variables with which commands run: on two ranks, whatever the page says."""
    path, more = [str(Path(sys.executable).parent), os.environ["PATH"]], {}
    if under_mpi:
        mpiexec, python = MPI
        (tools / "mpiexec").write_text(f'#!/bin/bash\nexec {mpiexec} -n 2 "${{@:3}}"\n')
        (tools / "mpiexec").chmod(0o755)
        path[:1], more = [str(tools), str(Path(python).parent)], patience()
    more |= {"PATH": os.pathsep.join(path), "RUN": "mpiexec -n 2", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **more}


def run(command, folder, variables):
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.fixture
def bucket(request, tmp_path_factory, monkeypatch):
    """For pages of buckets: a server with one that is called ``bucket``."""
    if "bucket" not in request.node.callspec.id:
        yield
        return
    with s3_server("moto", tmp_path_factory.mktemp("store")) as port:
        for name, value in of_store(port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(objects, "_pid", 0)  # later tests' workers are forked again
        yield


def without_digits(text):
    return re.sub(r"\d[\d,.]*\d|\d", "0", text)


@pytest.mark.parametrize("page, under_mpi", [*cases()])
def test_a_page_runs(page, under_mpi, folder, bucket, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])  # as where a page is typed in
    variables = environment(under_mpi, tmp_path_factory.mktemp("bin"))
    names = {"__name__": "page"}
    for block in blocks_of(page):
        if not block.runs or block.under_mpi != under_mpi:
            continue
        if block.file is not None:
            (folder / block.file).write_text(block.text)
        elif block.kind == "python":
            exec(compile(block.text, short(page), "exec"), names)
        elif block.kind == "bash":
            run(block.text, folder, variables)
        else:
            for command, shown in block.commands:
                found = run(command, folder, variables)
                if shown.strip():
                    wanted, found = without_digits(shown), without_digits(found)
                    same = doctest.OutputChecker().check_output(wanted, found, FLAGS)
                    assert same, f"{command}\nprints\n{found}\nbut the page shows\n{wanted}"


@pytest.mark.parametrize("frames", [None, slice(0, None, 5), [0, 7, -1]])
def test_contacts_do_not_break_where_frames_are_left_out(frames, adk):
    blocks = blocks_of(ROOT / "docs/map-reduce.md")
    (text,) = (block.text for block in blocks if block.file == "contacts.py")
    names = {"__name__": "contacts"}
    exec(text, names)
    program = names["Contacts"](radius=np.inf)
    result = mdio.map_reduce(adk["dcd"], top=adk["psf"], map=program, frames=frames)
    assert len(result.keys) == 214 and not result.columns["breaks"].any()


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_blocks_are_of_known_kinds(page):
    for block in blocks_of(page):
        assert block.kind in KINDS, block.text
        assert not block.mark or re.match(r"(not run|file): \S", block.mark), block.mark
        assert block.kind != "console" or block.commands, block.text


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target or target.startswith("_static/"):  # drawn where the site is built
            continue
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target

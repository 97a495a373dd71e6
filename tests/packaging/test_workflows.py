"""The wrapper for Snakemake gives commands that work; an engine formats and runs them alike."""

import os
import runpy
import shlex
import string
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

WRAPPER = Path(__file__).resolve().parents[2] / "packaging/workflows/snakemake/wrapper.py"


class Named(dict):
    __getattr__ = dict.__getitem__


class Formatter(string.Formatter):
    def format_field(self, value, format_spec):
        return shlex.quote(str(value)) if format_spec == "q" else format(value, format_spec)


def run(monkeypatch, **job):
    def shell(template):
        caller = sys._getframe(1).f_globals
        command = Formatter().vformat(template, (), caller)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(command, shell=True, check=True, env={**os.environ, "PATH": path})

    engine = ModuleType("snakemake.shell")
    engine.shell = shell
    monkeypatch.setitem(sys.modules, "snakemake", ModuleType("snakemake"))
    monkeypatch.setitem(sys.modules, "snakemake.shell", engine)
    given = SimpleNamespace(threads=2, log_fmt_shell=lambda **_: "> log 2>&1", **job)
    runpy.run_path(str(WRAPPER), init_globals={"snakemake": given})


def test_snakemake(adk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = "a b.zarr"
    run(
        monkeypatch,
        input=Named(trajectory=str(adk["xtc"]), top=str(adk["psf"])),
        output=[out],
        params={"options": "--group ca='name CA'"},
    )
    run(
        monkeypatch,
        input=Named(trajectory=out),
        output=["rmsd.csv"],
        params={"kernel": "rmsd", "options": "--select 'name CA'"},
    )
    values = np.loadtxt("rmsd.csv", delimiter=",", skiprows=1)
    assert values.shape == (98, 3)
    assert values[0, 2] < 1e-3 < values[-1, 2]

"""What workflows run gives commands that work; an engine formats and runs them alike."""

import os
import re
import runpy
import shlex
import string
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
from MDAnalysisTests import datafiles

from mdio._version import __version__
from mdio.analysis.kernels.kernel import KERNELS

WORKFLOWS = Path(__file__).resolve().parents[2] / "packaging/workflows"
WRAPPER = WORKFLOWS / "snakemake/wrapper.py"
GALAXY = WORKFLOWS / "galaxy/mdio.xml"


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


def test_nextflow(adk, tmp_path):
    """The scripts of the module's processes, filled in as the engine does, make their outputs."""
    texts = (WORKFLOWS / "nextflow/main.nf").read_text().split('"""')[1::2]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    topology = f"-s '{adk['psf']}'"
    for text, given in zip(
        texts,
        [
            {"trajectory": adk["xtc"], "prefix": "md", "suffix": "zarr", "topology": topology},
            {"trajectory": "md.zarr", "prefix": "md.rgyr", "kernel": "rgyr", "topology": ""},
        ],
        strict=True,
    ):
        values = {"task.cpus": 1, "args": "", "task.process": "MDIO", **given}
        script = re.sub(
            r"(?<!\\)\$\{([\w.]+)\}", lambda found, values=values: str(values[found[1]]), text
        )
        script = script.replace("\\\\", "\\").replace("\\$", "$")
        words = ["bash", "-euc", script]
        subprocess.run(words, check=True, cwd=tmp_path, env={**os.environ, "PATH": path})
        assert (tmp_path / "versions.yml").read_text() == f'"MDIO":\n    mdio: {__version__}\n'
    assert len((tmp_path / "md.rgyr.csv").read_text().splitlines()) == 99


def test_galaxy(tmp_path):
    """The command of the tool, filled in with what its own test gives, makes what that expects."""
    tool = ET.parse(GALAXY).getroot()
    assert tool.attrib["version"].startswith(__version__)
    inputs = {param.attrib["name"]: param for param in tool.findall("inputs/param")}
    assert {option.attrib["value"] for option in inputs["kernel"]} <= set(KERNELS)
    values = {name: param.attrib.get("value") for name, param in inputs.items()}
    command = tool.findtext("command").replace("\\$", "$")
    for param in tool.findall("tests/test/param"):
        name, value = param.attrib["name"], param.attrib["value"]
        assert name in inputs
        if "ftype" in param.attrib:
            assert param.attrib["ftype"] in inputs[name].attrib["format"].split(",")
            command = command.replace(f"${{{name}.ext}}", param.attrib["ftype"])
            value = str(Path(datafiles.XTC).with_name(value))
        values[name] = value
    for name, value in values.items():
        command = command.replace(f"'${name}'", shlex.quote(value))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = ["bash", "-c", " ".join(command.split())]
    subprocess.run(words, check=True, cwd=tmp_path, env={**os.environ, "PATH": path})
    lines = (tmp_path / tool.find("outputs/data").attrib["from_work_dir"]).read_text().splitlines()
    expected = tool.find("tests/test/output/assert_contents")
    assert len(lines) == int(expected.find("has_n_lines").attrib["n"])
    wanted = expected.find("has_line_matching").attrib["expression"]
    assert any(re.fullmatch(wanted, line) for line in lines)

"""What docs/environment.md lists is what there is."""

import ast
import json
import re

import pytest
from docs.pages import ROOT, table_rows
from structure.tree import HOMES

from mdio.cli.main import main
from mdio.cli.workers import SLURM_RANK_NAME
from mdio.core.words import RANK_VARIABLES

PAGE = ROOT / "docs" / "environment.md"
SET_FOR_OTHERS = {
    "LC_ALL",
    "LD_PRELOAD",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MPLBACKEND",
    "PYTHONPATH",
}
"""What mdio and its tests set for programs that they start."""


def names_in(cell):
    return set(re.findall(r"`([^`]+)`", cell))


def asked_for(path):
    """Yield the names of environment variables that a file asks for."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text if "environ" in text or "MDIO_" in text else "")):
        if isinstance(node, ast.Constant) and re.fullmatch("MDIO_[A-Z_]+", str(node.value)):
            yield node.value
        if isinstance(node, ast.Call) and node.args:
            asks = ast.unparse(node.func) in ("os.environ.get", "os.getenv")
            key = node.args[0]
        elif isinstance(node, ast.Subscript):
            asks, key = ast.unparse(node.value) == "os.environ", node.slice
        else:
            continue
        if asks and isinstance(key, ast.Constant):
            yield key.value


def test_every_environment_variable_is_listed():
    listed = set().union(*(names_in(row[0]) for row in table_rows(PAGE, "Environment variables")))
    tops = [ROOT / name for name in (*HOMES, "tests", "bench")]
    found = {name for top in tops for path in top.rglob("*.py") for name in asked_for(path)}
    found -= {"PATH", *SET_FOR_OTHERS}
    assert listed == found | {*RANK_VARIABLES, SLURM_RANK_NAME}


@pytest.fixture
def documented():
    rows = table_rows(PAGE, "JSON")
    return {command: names_in(row[1]) for row in rows for command in names_in(row[0])}


def test_json_keys_are_those_listed(documented, adk, tmp_path, capsys):
    def keys(*words):
        assert main([str(word) for word in (*words, "--json")]) == 0
        return json.loads(capsys.readouterr().out).keys()

    out = tmp_path / "a.zarr"
    found = {
        "info": keys("info", adk["xtc"]),
        "convert": keys("convert", adk["xtc"], out, "--verify"),
        "convert --dry-run": keys("convert", adk["xtc"], out, "--dry-run"),
        "split": keys("split", adk["xtc"], tmp_path / "a.segments", "-n", "2") | {"verify"},
        "verify": keys("verify", out),
        "analyze": keys("analyze", "rmsd", out, "-s", adk["psf"], "--select", "name CA"),
        "cache follow": keys("cache", "follow", out, "--dir", tmp_path / "c", "--until-idle", "0s"),
        "cache status": keys("cache", "status", tmp_path / "c"),
        "cache verify": keys("cache", "verify", tmp_path / "c"),
        "cache evict": keys("cache", "evict", tmp_path / "c"),
        "mapreduce": keys(
            *("mapreduce", "mdio.mapreduce.programs.residence:WaterResidence", adk["dcd"]),
            *("-s", adk["psf"], "--set", "water=name N", "--set", "around=name CA"),
        ),
        "advise": keys("advise", "--replay", ROOT / "tests/golden/advise_rmsd_xtc.json"),
    }
    assert documented == {command: set(names) for command, names in found.items()}

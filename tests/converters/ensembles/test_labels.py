"""Names of trajectories in the manifest of an ensemble that cannot be."""

import json

import pytest

import mdio
from mdio.cli.main import main
from mdio.layouts.manifest import with_checksum


def rename(out, name):
    """Give the second trajectory another name in the manifest, with the right checksum."""
    path = out / ("zarr.json" if out.suffix == ".zarr" else "ensemble.json")
    node = json.loads(path.read_text())
    if out.suffix == ".zarr":
        manifest = node["attributes"]["mdio"] | {"members": ["a", name]}
        node["attributes"]["mdio"] = with_checksum(manifest)
    else:
        node = with_checksum(node | {"members": ["a", name]})
    path.write_text(json.dumps(node))


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/../b", "a\0b", "c", 5, None, ["a"]])
@pytest.mark.parametrize("suffix", ["zarr", "h5md"])
def test_names_that_are_none(adk, tmp_path, capsys, suffix, name):
    out = tmp_path / f"both.{suffix}"
    mdio.convert_ensemble({"a": adk["xtc"], "b": adk["dcd"]}, out, stop=3)
    rename(out, name)
    for words in (["info"], ["verify"], ["analyze", "rgyr"]):
        assert main([*words, str(out)]) == 1
        assert capsys.readouterr().err.count("\n") == 1

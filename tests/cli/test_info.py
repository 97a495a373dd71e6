"""What `mdio info` shows of how an output was made."""

import mdio
from mdio.cli.main import main


def shown(capsys, path):
    assert main(["info", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    return {line[:14].strip(): line[14:].strip() for line in lines}


def test_what_was_kept_and_how(adk, tmp_path, capsys):
    out, again = tmp_path / "ca.zarr", tmp_path / "again.h5md"
    options = {"top": adk["psf"], "select": "name CA", "step": 2, "force": True}
    mdio.convert(adk["xtc"], out, **options)
    rows = shown(capsys, out)
    assert rows["kept"] == "49 of 98 frames, 214 of 3,341 atoms"
    assert "made with" not in rows
    fit = mdio.Selection(fit="rot+trans", fit_select="name CA")
    mdio.convert(adk["xtc"], out, selection=fit, **options)
    rows = shown(capsys, out)
    assert rows["made with"] == "--fit rot+trans --fit-select name CA"
    mdio.convert(out, again)
    rows = shown(capsys, again)
    assert rows["made with"] == "--fit rot+trans"
    assert "kept" not in rows
    centred = mdio.Selection(center="all")
    mdio.convert(again, out, top=out.with_suffix(".top.pdb"), selection=centred, force=True)
    assert shown(capsys, out)["made with"] == "--center all --fit rot+trans"

"""What verify says of differences that are the rounding of a format's own units."""

import mdio
from mdio.cli.main import main


def test_rounding_to_the_units_of_the_format_is_told(adk, tmp_path, capsys):
    whole, back = tmp_path / "a.zarr", tmp_path / "back.trr"
    mdio.convert(adk["dcd"], whole, stop=5)
    mdio.convert(whole, back)
    assert main(["verify", str(back), "--against", str(whole)]) == 0
    assert "0 allowed besides the rounding of its format" in capsys.readouterr().out

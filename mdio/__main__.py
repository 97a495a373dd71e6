"""``python -m mdio``: the command line."""

from mdio.cli.start import main

main()

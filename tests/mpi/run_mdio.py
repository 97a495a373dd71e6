"""The command line as each rank runs it."""

import sys

from mdio.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

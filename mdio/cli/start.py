"""Entry point of the program ``mdio``: Ctrl-C ends it with one line, also during imports."""

import sys


def main() -> None:
    """Run the command line, and end the program."""
    from mdio._name import clash_with

    if clash := clash_with():
        print(f"mdio: {clash}", file=sys.stderr)
        raise SystemExit(1)
    try:
        from mdio.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("mdio: interrupted; nothing was done yet", file=sys.stderr)
        raise SystemExit(130) from None

"""The programs ``mdio`` and ``python -m mdio``: Ctrl-C ends them with one line, also in imports."""

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


if __name__ == "__main__":
    main()

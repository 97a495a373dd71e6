"""The programs ``mdio`` and ``python -m mdio``: Ctrl-C ends them with one line, also in imports."""

import os
import sys


def main() -> None:
    """Run the command line, and end the program."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # it is closed, and a file of ours would get its number
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, "w" if number else "r"))  # noqa: SIM115
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

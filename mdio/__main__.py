"""The programs ``mdio`` and ``python -m mdio``: Ctrl-C ends them with one line, also in imports."""

import os
import sys


def open_closed_streams() -> None:
    """Open the null device in place of standard streams that are closed.

    Otherwise a file of this program, or of one that it starts, would get the number of the stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)  # `dup2` does not, if it was opened with this number
            setattr(sys, name, open(number, "w" if number else "r"))  # noqa: SIM115


def main() -> None:
    """Run the command line, and end the program."""
    open_closed_streams()
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

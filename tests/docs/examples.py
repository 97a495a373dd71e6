"""Runs the examples of public names: ``python examples.py NAME ...``, also on ranks."""

import doctest
import sys

import mdio


def failures(name):
    """Return (examples, failures) of the docstring of ``mdio.NAME``."""
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(getattr(mdio, name), f"mdio.{name}", module=False, globs={})
    result = doctest.DocTestRunner().run(test)
    return result.attempted, result.failed


if __name__ == "__main__":
    sys.exit(any(failures(name)[1] for name in sys.argv[1:]))

"""The stubs of the compiled modules have the functions and arguments that these have."""

import ast
import re
from importlib import import_module

import pytest
from structure.tree import ROOT


def of_stub(name):
    tree = ast.parse((ROOT / "mdio" / f"{name}.pyi").read_text())
    return {
        node.name: len(node.args.posonlyargs + node.args.args)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def of_module(module):
    """Return how many arguments each function has, as pybind11 writes it into its docstring."""
    docs = {name: value.__doc__ for name, value in vars(module).items() if callable(value)}
    return {
        name: len(re.findall(r"\w+: ", doc.split("\n")[0].partition("(")[2]))
        for name, doc in docs.items()
    }


@pytest.mark.parametrize("name", ["_kernels", "_xtc"])
def test_stubs_are_those_of_the_module(name):
    assert of_stub(name) == of_module(import_module(f"mdio.{name}"))

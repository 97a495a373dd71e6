"""Imports point one way: between packages by rank, and inside every package without circles."""

from graphlib import CycleError, TopologicalSorter

import pytest
from structure.tree import imports, modules, packages

RANK = {
    "mdio.core": 0,
    "mdio.layouts": 1,
    "mdio.parallel": 2,
    "mdio.testing": 2,
    "mdio.converters": 3,
    "mdio.readers": 3,
    "mdio.analysis": 4,
    "mdio.advisor": 5,
    "mdio.mapreduce": 5,
    "mdio.benches": 5,
    "mdio.cli": 6,
}


def top(name: str) -> str:
    return ".".join(name.split(".")[:2])


def test_every_package_has_a_rank():
    assert {top(name) for name in packages()} == RANK.keys() | {"mdio"}


@pytest.mark.parametrize("module", [name for name in modules() if top(name) in RANK])
def test_imports_point_down(module):
    own = top(module)
    for name in imports(module):
        other = top(name)
        if other in RANK and other != own:
            assert RANK[other] < RANK[own], f"{module} imports {name}: {own} lies below {other}"


def child(package: str, module: str) -> str:
    """Return what of a package a module is or is in: a file or a subpackage, or the package."""
    return module.removeprefix(package).lstrip(".").split(".")[0]


@pytest.mark.parametrize("package", [name for name in packages() if name != "mdio"])
def test_no_circle_among_the_children_of_a_package(package):
    graph: dict[str, set[str]] = {}
    inside = [name for name in modules() if f"{name}.".startswith(f"{package}.")]
    for module in inside:
        targets = {child(package, name) for name in imports(module) if name in inside}
        graph.setdefault(child(package, module), set()).update(targets)
    for name, targets in graph.items():
        targets.discard(name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"{package}: {' imports '.join(reversed(error.args[1]))}")

"""Imports point one way: between packages by rank, and inside every package without circles."""

from graphlib import CycleError, TopologicalSorter

from structure.tree import imports, modules, packages

RANK = {
    "mdio.core": 0,
    "mdio.layouts": 1,
    "mdio.parallel": 2,
    "mdio.testing": 2,
    "mdio.converters": 3,
    "mdio.readers": 4,
    "mdio.analysis": 4,
    "mdio.advisor": 5,
    "mdio.mapreduce": 5,
    "mdio.cli": 6,
}


def top(name: str) -> str:
    return ".".join(name.split(".")[:2])


def test_every_package_has_a_rank():
    assert {top(name) for name in packages()} == RANK.keys() | {"mdio"}


def test_imports_point_down():
    offenders = [
        f"{module} imports {name}"
        for module in modules()
        for name in sorted(imports(module))
        if top(module) != top(name)
        and {top(module), top(name)} <= RANK.keys()
        and RANK[top(name)] >= RANK[top(module)]
    ]
    assert offenders == []


def child(package: str, module: str) -> str:
    """Return what of a package a module is or is in: a file or a subpackage, or the package."""
    return module.removeprefix(package).lstrip(".").split(".")[0]


def circle_in(package: str) -> str | None:
    """Return a circle of imports among the children of a package; None if there is none."""
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
        return f"{package}: {' imports '.join(reversed(error.args[1]))}"
    return None


def test_no_circle_among_the_children_of_a_package():
    found = [circle_in(package) for package in packages() if package != "mdio"]
    assert [circle for circle in found if circle is not None] == []

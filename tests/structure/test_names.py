"""Outside of a format's own room nobody asks for the name or the class of a layout."""

import ast

from structure.tree import modules, packages

ROOMS = ("native", "segments", "h5md", "zarr", "foreign", "views")
NAMES = {"xtc", "trr", "dcd", "ncdf", "netcdf", "segments", "h5md", "zarr", "generic", "chain"}


def is_own_room(module: str) -> bool:
    return module.startswith(tuple(f"mdio.layouts.{room}." for room in ROOMS))


def literals(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)} & NAMES


def asks(tree: ast.AST) -> int:
    """Count comparisons with names of layouts, and isinstance of their classes."""
    n_found = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            n_found += any(literals(one) for one in (node.left, *node.comparators))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            n_found += any(name.endswith("Layout") and name != "Layout" for name in names)
    return n_found


def test_nobody_asks_for_names():
    others = {
        module: path
        for module, path in modules().items()
        if module not in packages() and not is_own_room(module)
    }
    assert [m for m, path in others.items() if asks(ast.parse(path.read_text()))] == []

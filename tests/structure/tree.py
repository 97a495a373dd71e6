"""The product's modules by name, and which of them each imports."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOMES = {
    "mdio": "mdio",
    "layouts": "mdio.layouts",
    "converters": "mdio.converters",
    "readers": "mdio.readers",
}
"""Folders at the top, and the packages that they are installed as."""


@cache
def packages() -> dict[str, Path]:
    """Return the folder of every package."""
    return {
        ".".join([name, *init.parent.relative_to(ROOT / folder).parts]): init.parent
        for folder, name in HOMES.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }


@cache
def modules() -> dict[str, Path]:
    """Return the file of every module; of a package, its ``__init__``."""
    found = {}
    for package, folder in packages().items():
        for path in folder.glob("*.py"):
            found[f"{package}.{path.stem}".removesuffix(".__init__")] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Return the modules of ours that a module imports, anywhere in it."""
    names = set()
    path = modules()[module]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in modules() else node.module)
    return frozenset(names & modules().keys())

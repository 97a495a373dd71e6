"""Detects files of another distribution in the package ``mdio``.

Two others that have nothing to do with molecular-dynamics layouts install a package of that name.
pip lets each overwrite the other's files without a word.
"""

from __future__ import annotations

from pathlib import Path

FILES_OF_OTHERS = {"segy": "multidimio", "xtcutils.pyx": "mdio", "mdioio.py": "mdio"}
"""Files that only they have, and the name of the distribution."""


def clash_with() -> str | None:
    """Return a message on another distribution in this package's folder; None if there is none.

    It imports nothing of this package, which may have files of the other one.
    """
    folder = Path(__file__).absolute().parent
    names = {path.name for path in folder.iterdir()}
    names_of_others = {FILES_OF_OTHERS[name] for name in FILES_OF_OTHERS.keys() & names}
    if not names_of_others:
        return None
    name = min(names_of_others)
    return (
        f"{folder}: holds files of another distribution, {name}, which installs a package of the "
        "same name; one overwrites the other. Uninstall it (pip uninstall "
        f"{name}), then install mdio-layouts again (pip install --force-reinstall --no-deps "
        "mdio-layouts), or give each an environment of its own"
    )

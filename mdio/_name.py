"""Whether another distribution has put its files into the package ``mdio``.

Two others that have nothing to do with molecular-dynamics layouts install a package of that name.
pip lets each overwrite the other's files without a word.
"""

from __future__ import annotations

from pathlib import Path

FILES_OF_OTHERS = {"segy": "multidimio", "xtcutils.pyx": "mdio", "mdioio.py": "mdio"}
"""What only they have, and the name of the distribution."""


def clash_with() -> str | None:
    """Return what to do about another distribution in this package's folder; None if it is alone.

    It imports nothing of this package, which may be theirs by now.
    """
    folder = Path(__file__).absolute().parent
    names = {path.name for path in folder.iterdir()}
    others = {FILES_OF_OTHERS[name] for name in FILES_OF_OTHERS.keys() & names}
    if not others:
        return None
    name = min(others)
    return (
        f"{folder}: holds files of another distribution, {name}, which installs a package of the "
        "same name; one overwrites the other. Uninstall it (pip uninstall "
        f"{name}), then install mdio-layouts again (pip install --force-reinstall --no-deps "
        "mdio-layouts), or give each an environment of its own"
    )

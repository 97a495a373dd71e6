"""How frames are stored: one module per layout, one contract (`mdio.layouts.base`), one look-up."""

if __name__ != "mdio.layouts":  # a second copy of the registry would be a silent trap
    raise ImportError("import mdio.layouts, not the folder layouts/ of the source tree")

"""Between layouts: convert, split, verify. Knows nothing of MDAnalysis readers."""

if __name__ != "mdio.converters":
    raise ImportError("import mdio.converters, not the folder converters/ of the source tree")

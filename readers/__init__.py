"""MDAnalysis' readers for every layout, and a writer. Conversion is elsewhere."""

if __name__ != "mdio.readers":
    raise ImportError("import mdio.readers, not the folder readers/ of the source tree")

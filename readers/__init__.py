"""MDAnalysis plugins over every layout. Knows nothing of conversion."""

if __name__ != "mdio.readers":
    raise ImportError("import mdio.readers, not the folder readers/ of the source tree")

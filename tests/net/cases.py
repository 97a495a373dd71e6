"""What the net runs: conversions and reads, by the words of the command line and of Python."""

NATIVE = ("all.xtc", "all.trr", "all.dcd", "all.ncdf")
OTHERS = ("four.nc", "other.h5md", "mdtraj.h5", "models.pdb", "all.xyz", "one.gro", "run.lammpstrj")
LAYOUTS = ("zarr", "h5md", "segments")
SUFFIXES = ("xtc", "trr", "dcd", "ncdf")
TOP = ("-s", "top.pdb")
GROUPS = ("--group", "ca=name CA", "--group", "water=resname SOL")


def conversions():
    """Return the words of `mdio` commands that run one after the other, by the name of a case."""
    cases = {}

    def add(name, *commands):
        assert name not in cases, name
        cases[name] = [command.split("|") for command in commands]

    for source in (*NATIVE, *OTHERS):
        for layout in LAYOUTS:
            add(f"{source}-{layout}", f"convert|{source}|out.{layout}")
    for source in NATIVE:
        for suffix in SUFFIXES:
            add(f"{source}-to-{suffix}", f"convert|{source}|out.{suffix}")
        add(f"{source}-refs", f"convert|{source}|out.refs")
        add(f"{source}-split", f"split|{source}|out.segments|-n|3")
    words = {
        "top": "|".join(TOP),
        "groups": "|".join(TOP + GROUPS),
        "select": "|".join((*TOP, "--select", "resid 2:6 and segid A")),
        "no-topology": "|".join((*TOP, "--no-topology")),
        "slice": "--start|2|--stop|12|--step|3",
        "times": "-b|4|-e|20|--dt|4",
        "whole": "|".join((*TOP, "--pbc", "whole")),
        "mol": "|".join((*TOP, "--pbc", "mol", "--center", "segid A")),
        "nojump": "--pbc|nojump",
        "atom": "--pbc|atom",
        "chunks": "--chunk-frames|4|--chunk-atoms|32",
        "timeseries": "--for|timeseries",
        "frames": "--for|frames",
        "step": "--precision|0.01",
        "floats": "--precision|none",
        "stripes": "--stripe-size|64K|--stripe-count|2",
        "workers": "-w|2|--chunk-frames|3",
    }
    for layout in ("zarr", "h5md"):
        for name, options in words.items():
            add(f"xtc-{layout}-{name}", f"convert|all.xtc|out.{layout}|{options}")
        for kind in ("gzip", "lz4", "zstd:3", "fast", "rigid"):
            if (layout, kind) != ("h5md", "fast"):
                add(f"xtc-{layout}-{kind}", f"convert|all.xtc|out.{layout}|--compression|{kind}")
        rounded = "--precision|0.01|--precision-velocities|0.1|--precision-forces|1"
        add(f"trr-{layout}-rounded", f"convert|all.trr|out.{layout}|{rounded}")
    for name in ("top", "select", "slice", "times", "whole", "nojump", "workers"):
        options = words[name].replace("|--chunk-frames|3", "|--segments|4")
        add(f"trr-segments-{name}", f"convert|all.trr|out.segments|{options}")
    add("h5md-gromacs", "convert|all.trr|out.h5md|--flavour|gromacs")
    add("h5md-contiguous", "convert|all.dcd|out.h5md|--contiguous")
    add("segments-of-dcd", "convert|all.xtc|out.segments|--container|dcd|--segments|3")
    for layout in LAYOUTS:
        add(f"joined-{layout}", f"convert|a.xtc|b.xtc|out.{layout}")
        add(f"joined-first-{layout}", f"convert|b.xtc|a.xtc|out.{layout}|--overlap|keep-first")
        add(f"joined-error-{layout}", f"convert|a.xtc|b.xtc|out.{layout}|--overlap|error")
        add(f"append-{layout}", f"convert|a.xtc|out.{layout}", f"append|b.xtc|out.{layout}")
        add(f"again-{layout}", f"convert|a.xtc|out.{layout}", f"convert|a.xtc|out.{layout}")
        add(f"force-{layout}", f"convert|b.xtc|out.{layout}", f"convert|a.xtc|out.{layout}|--force")
        add(
            f"resume-{layout}",
            f"convert|a.xtc|out.{layout}",
            f"convert|a.xtc|out.{layout}|--resume",
        )
        add(f"cut-{layout}", f"convert|cut.xtc|out.{layout}")
        add(f"cut-salvage-{layout}", f"convert|cut.xtc|out.{layout}|--salvage")
        add(f"damaged-{layout}", f"convert|damaged.xtc|out.{layout}")
        add(f"damaged-salvage-{layout}", f"convert|damaged.xtc|out.{layout}|--salvage")
        add(f"back-{layout}", f"convert|all.xtc|mid.{layout}", f"convert|mid.{layout}|out.xtc")
        add(
            f"twice-{layout}",
            "convert|all.trr|mid.zarr",
            f"convert|mid.zarr|out.{layout}|--step|2",
        )
        add(
            f"repair-{layout}",
            f"convert|all.dcd|out.{layout}",
            f"repair|out.{layout}|--against|all.dcd",
        )
    add("ensemble-zarr", "convert|x=a.xtc|y=b.xtc|out.zarr|--ensemble")
    add("ensemble-h5md", "convert|x=a.xtc|y=b.xtc|out.h5md|--ensemble")
    add("no-source", "convert|none.xtc|out.zarr")
    add("no-layout", "convert|all.xtc|out.nothing")
    add("no-option", "convert|all.xtc|out.zarr|--nothing")
    add("wrong-selection", "convert|all.xtc|out.zarr|-s|top.pdb|--select|protien")
    add("wrong-topology", "convert|all.xyz|out.zarr|-s|one.gro|--select|name CB and resid 99")
    add("packed", "convert|all.xyz.gz|out.zarr")
    add("lengths", "convert|all.xyz|out.zarr|--length-unit|nm|--timestep|5")
    add("dry", "convert|all.xtc|out.zarr|--dry-run|-w|2")
    return cases


READ = (
    *NATIVE,
    *OTHERS,
    "out.zarr",
    "floats.zarr",
    "out.h5md",
    "out.segments",
    "out.refs",
    "grouped.zarr",
    "grouped.h5md",
)
"""Sources, and outputs that `PREPARED` makes."""
PREPARED = (
    "convert|all.xtc|out.zarr|--chunk-frames|4",
    "convert|all.xtc|floats.zarr|--precision|none|--chunk-frames|4|--chunk-atoms|32",
    "convert|all.trr|out.h5md|--chunk-frames|4",
    "split|all.xtc|out.segments|-n|3",
    "convert|all.dcd|out.refs",
    "|".join(("convert", "all.xtc", "grouped.zarr", *TOP, *GROUPS)),
    "|".join(("convert", "all.xtc", "grouped.h5md", *TOP, *GROUPS)),
)

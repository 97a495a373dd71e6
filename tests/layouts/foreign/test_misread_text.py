"""Text trajectories that the library below misreads: the right values, or a refusal with words."""

import subprocess
import sys

import numpy as np
import pytest

import mdio
from mdio.cli.main import main
from mdio.core.errors import OptionError, SourceError

ATOM = "ATOM  {:5d}  C   ALA A   1    {:8.3f}{:8.3f}{:8.3f}  1.00  0.00           C  \n"
CELL = "CRYST1{0:9.3f}{0:9.3f}{0:9.3f}  90.00  90.00  90.00 P 1           1\n"


def write(path, text):
    path.write_text(text)
    return path


def positions_of(path, **options):
    with mdio.open(path, **options) as layout:
        return layout.read(0, layout.info.n_frames).positions


def refusal(path, **options):
    with pytest.raises(SourceError) as error, mdio.open(path, **options) as layout:
        layout.read(0, layout.info.n_frames)
    text = str(error.value)
    assert path.name in text and "\n" not in text
    return text


def gro(frame, *, title="md", decimals=3, velocities=False, box="   2.00000   2.00000   2.00000"):
    width = decimals + 5
    rows = "".join(
        f"    1SOL     OW{atom + 1:5d}"
        + "".join(f"{x:{width}.{decimals}f}" for x in (atom + frame / 8, 1, 2))
        + "".join(f"{x:{width}.{decimals + 1}f}" for x in (frame, atom, 0.5) if velocities)
        + "\n"
        for atom in range(3)
    )
    return f"{title}\n    3\n{rows}{box}\n"


def dump(step, columns="id type x y z", rows=((1, 1, 1, 2, 3), (2, 1, 5, 5, 5)), **words):
    """Return a frame of a dump; `words`: bounds, kinds and what stands before it."""
    bounds = words.get("bounds", ((0, 20),) * 3)
    lines = [words["before"]] if "before" in words else []
    lines += ["ITEM: TIMESTEP", step, "ITEM: NUMBER OF ATOMS", len(rows)]
    lines += [f"ITEM: BOX BOUNDS {words.get('kinds', 'pp pp pp')}"]
    lines += [" ".join(map(str, bound)) for bound in bounds]
    lines += [f"ITEM: ATOMS {columns}", *(" ".join(map(str, row)) for row in rows), ""]
    return "\n".join(map(str, lines))


def pdb(frame, before="", after="", n_atoms=3):
    return (
        before + "".join(ATOM.format(atom + 1, atom, frame, 0) for atom in range(n_atoms)) + after
    )


def model(number, cell=None):
    inside = "" if cell is None else CELL.format(cell)
    return pdb(number, f"MODEL {number + 1:8d}\n{inside}", "ENDMDL\n")


@pytest.mark.parametrize("decimals", [3, 5])
@pytest.mark.parametrize("velocities", [False, True])
def test_all_frames_of_gro_are_read(tmp_path, decimals, velocities):
    kinds = {"decimals": decimals, "velocities": velocities}
    frames = [gro(n, title=f"md t= {n / 2} step= {n * 250}", **kinds) for n in range(3)]
    path = write(tmp_path / "md.gro", "".join(frames))
    with mdio.open(path) as layout:
        block = layout.read(0, 3)
        assert layout.notes == ()
    np.testing.assert_allclose(block.positions[:, 1, 0], [10, 11.25, 12.5])
    assert block.time.tolist() == [0, 0.5, 1] and block.step.tolist() == [0, 250, 500]
    np.testing.assert_allclose(block.box[:, :3], 20)
    if velocities:
        np.testing.assert_allclose(block.velocities[2, 1], [20, 10, 5])
    assert (block.velocities is not None) == velocities


def test_lengths_of_gro_that_touch_keep_their_signs(tmp_path):
    box = "".join(f"{x:10.5f}" for x in (100, 100, 100, 0, 0, 50, 0, -50, -50))
    boxes = []
    for name, text in {"close.gro": box, "wide.gro": box.replace("-", " -")}.items():
        with mdio.open(write(tmp_path / name, gro(0, box=text))) as layout:
            boxes.append(layout.read(0, 1).box[0])
    np.testing.assert_array_equal(*boxes)
    assert boxes[0][3] > 90


def test_letters_of_titles_part_no_lines(tmp_path):
    """The second byte of an A with a ring is a line end to Python's str, not to other programs."""
    path = write(tmp_path / "md.gro", gro(0, title="in \u00c5"))
    assert len(positions_of(path)[0]) == 3
    path = write(tmp_path / "a.xyz", "1\n\u00c5 Properties=id:I:1:pos:R:3:species:S:1\n7 1 2 3 C\n")
    assert positions_of(path).tolist() == [[[1, 2, 3]]]


def test_times_of_some_frames_are_told_to_be_left_out(tmp_path):
    path = write(tmp_path / "md.gro", gro(0, title="md t= 5") + gro(1) + gro(2))
    with mdio.open(path) as layout:
        assert layout.read(0, 3).time.tolist() == [0, 1, 2]
        assert "times of 1 frame are left out" in " ".join(layout.notes)


def test_times_are_shifted_and_options_known(tmp_path):
    path = write(tmp_path / "md.gro", gro(0, title="md t= 5") + gro(1, title="md t= 6"))
    with mdio.open(path, time_offset=100.0) as layout:
        assert layout.read(0, 2).time.tolist() == [105, 106]
        assert layout.info.time_first_ps == 105
    with pytest.raises(
        OptionError, match=r"md\.gro: .*GRO has no option 'time_ofset'.*time_offset"
    ):
        _ = mdio.open(path, time_ofset=100.0).info


@pytest.mark.parametrize("option", [{"dt": 2.0}, {"length_unit": "pm"}])
def test_what_a_gro_says_is_not_assumed(tmp_path, option):
    path = write(tmp_path / "md.gro", gro(0, title="md t= 1.0"))
    with pytest.raises(OptionError, match="so that there is nothing to assume"):
        _ = mdio.open(path, **option).info


def test_velocities_of_gro_are_zero_or_none_as_the_file_has_them(tmp_path):
    """MDAnalysis takes zeros for none; frames that have none get those of no other frame."""
    at_rest = gro(0, velocities=True).replace("1.0000", "0.0000").replace("2.0000  ", "0.0000  ")
    rest = "".join(
        line if len(line) < 60 else line[:44] + "  0.0000" * 3 + "\n"
        for line in at_rest.splitlines(keepends=True)
    )
    path = write(tmp_path / "md.gro", rest + gro(1) + gro(2, velocities=True))
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        with mdio.open(path) as layout:
            assert layout.info.sparse == ("velocities",)
            read = {n: layout.read(n, n + 1).velocities[0] for n in order}
        assert not read[0].any() and np.isnan(read[1]).all() and read[2][0, 0] == 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (gro(0).replace("    3\n", "    2\n", 1), r"in place of a box of 3 or 9 numbers"),
        (gro(0).replace("   1.000   2.000\n", "  1.000    2.000\n", 1), "decimal points"),
        (gro(0, velocities=True).replace("  0.5000\n", "\n", 1), "5 and 6 numbers"),
        (gro(0).replace("    3\n", "    x\n", 1), "'    x' in place of a number of atoms"),
    ],
)
def test_gro_that_is_not_as_its_format_has_it_is_refused(tmp_path, text, said):
    assert said in refusal(write(tmp_path / "md.gro", text))


def test_counts_that_the_size_refutes_are_refused_at_once(tmp_path):
    """Whatever the count, before anything of its size is allocated."""
    for name, text in {
        "a.xyz": "999999999\n\nC 0 0 0\n",
        "a.gro": "title\n999999999\n    1SOL     OW    1   0.126   1.624   1.679\n",
        "a.arc": "999999999 title\n1 C 0 0 0 1\n",
        "a.lammpstrj": dump(0).replace("ATOMS\n2\n", "ATOMS\n999999999\n"),
        "HISTORY": "title\n 0 0 1\ntimestep 1 999999999 0 0 0.5\nC 1 1.0 1.0\n1 2 3\n",
    }.items():
        write(tmp_path / name, text)
        code = (
            "import resource, sys; import mdio, MDAnalysis\n"
            "from mdio.core.errors import OptionError, SourceError\n"
            "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
            f"try: mdio.open({str(tmp_path / name)!r}).info\n"
            "except SourceError as error: print(error)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "says 999999999 atoms, and" in done.stdout or "of the first atom" in done.stdout, (
            done
        )


def test_sdf_is_not_taken_for_xyz(tmp_path):
    path = write(
        tmp_path / "a.sdf",
        "23684363\n  -OEChem-\n\n  1  0  0     0  0  0  0  0  0999 V2000\n"
        "    2.5369    0.7500    0.0000 O   0  0  0\nM  END\n$$$$\n",
    )
    with pytest.raises(mdio.core.errors.MdioError, match="not recognised as a trajectory"):
        _ = mdio.open(path).info


@pytest.mark.parametrize(
    ("comment", "box"),
    [
        ('Lattice="10 0 0 0 11 0 0 0 12" Properties=species:S:1:pos:R:3', [10, 11, 12, 90, 90, 90]),
        ("lattice='10 0 0 0 11 0 0 0 12'", [10, 11, 12, 90, 90, 90]),
        ('Lattice="10 0 0 5 8.66025404 0 0 0 12"', [10, 10, 12, 90, 90, 60]),
        ('Lattice="10 0 0 0 11 0 0 0 12" pbc="T T F"', [10, 11, 0, 90, 90, 90]),
        ('Lattice="10 0 0 0 11 0 0 0 12" pbc="F F F"', [0] * 6),
        ('Lattice="0 5 5 5 0 5 5 5 0"', [0] * 6),
        ("a plain comment, x = 1", [0] * 6),
        ("", [0] * 6),
    ],
)
def test_cells_of_extended_xyz(tmp_path, comment, box):
    path = write(tmp_path / "md.xyz", f"2\n{comment}\nC 1 2 3\nH 4 5 6\n2\n\nC 1 2 3\nH 4 5 6\n")
    with mdio.open(path) as layout:
        block = layout.read(0, 2)
        told = " ".join(layout.notes)
    np.testing.assert_allclose(block.box[0], box, atol=1e-5)
    assert not block.box[1].any()
    is_left_out = "Lattice" in comment and 0 in box
    assert ("box" in told) == is_left_out


@pytest.mark.parametrize(
    ("properties", "row"),
    [
        ("species:S:1:forces:R:3:pos:R:3", "C .1 .2 .3 5 6 7"),
        ("pos:R:3:species:S:1", "5 6 7 C"),
        ("id:I:1:species:S:1:pos:R:3:forces:R:3", "9 C 5 6 7 .1 .2 .3"),
    ],
)
def test_columns_of_extended_xyz(tmp_path, properties, row):
    path = write(tmp_path / "md.xyz", f"1\nProperties={properties} t=1\n{row}\n")
    assert positions_of(path).tolist() == [[[5, 6, 7]]]
    with mdio.open(path) as layout:
        assert list(layout.topology().columns["names"].values()) == ["C"]
    bad = write(tmp_path / "bad.xyz", f"1\nProperties={properties.replace('pos', 'x')}\n{row}\n")
    assert "lacks pos:R:3" in refusal(bad)


@pytest.mark.parametrize(
    "lattice", ["", 'Lattice="9 0 0 0 9 0 0 0 9" ', 'Lattice="0 9 0 9 0 0 0 0 9" ']
)
def test_velocities_and_forces_of_extended_xyz_are_told(tmp_path, lattice):
    properties = f"{lattice}Properties=species:S:1:pos:R:3:Velo:R:3:forces:R:3:Z:I:1"
    path = write(tmp_path / "a.xyz", f"1\n{properties}\nH 1 2 3 4 5 6 7 8 9 1\n")
    with mdio.open(path) as layout:
        assert any("columns of Velo and forces are not read" in note for note in layout.notes)
    path = write(tmp_path / "b.xyz", f"1\n{lattice}Properties=species:S:1:pos:R:3\nH 1 2 3\n")
    with mdio.open(path) as layout:
        assert not any("not read" in note for note in layout.notes)


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        (CELL.format(30) + model(0) + model(1) + "END\n", [30, 30]),
        (CELL.format(30) + model(0) + CELL.format(40) + model(1), [30, 40]),
        (model(0, 30) + model(1, 40), [30, 40]),
        (CELL.format(30) + pdb(0, after="END\n") + pdb(1, after="END\n"), [30, 30]),
        (model(0) + model(1, 20) + model(2) + model(3, 30), [0, 20, 0, 30]),
        (CELL.format(30) + model(0) + model(1) + CELL.format(40) + model(2), [30, 0, 40]),
        (CELL.format(1) + model(0) + model(1), [0, 0]),
        (model(0) + CELL.format(30) + model(1) + CELL.format(40) + "END\n", [30, 40]),
    ],
)
def test_cells_of_pdb(tmp_path, text, cells):
    path = write(tmp_path / "md.pdb", text)
    for order in (range(len(cells)), reversed(range(len(cells)))):
        with mdio.open(path) as layout:
            assert layout.info.n_frames == len(cells)
            for frame in order:
                assert layout.read(frame, frame + 1).box[0, 0] == cells[frame]


def test_frames_without_a_cell_are_told(tmp_path):
    path = write(tmp_path / "md.pdb", CELL.format(30) + model(0) + model(1) + model(2, 40))
    with mdio.open(path) as layout:
        assert "1 frame without CRYST1 beside others" in " ".join(layout.notes)


def test_a_file_that_is_cut_keeps_the_cell_of_its_header(tmp_path):
    text = CELL.format(30) + model(0) + model(1) + model(2)[:-10]
    with mdio.open(write(tmp_path / "md.pdb", text)) as layout:
        assert layout.info.lost and layout.info.n_frames == 2
        assert layout.read(0, 2).box[:, 0].tolist() == [30, 30]


def test_cells_between_models_are_those_of_either(tmp_path):
    path = write(tmp_path / "md.pdb", model(0) + CELL.format(30) + model(1) + model(2))
    with mdio.open(path) as layout:
        assert layout.info.n_frames == 1 and layout.info.lost
    with pytest.raises(SourceError, match="--salvage"):
        mdio.convert(path, tmp_path / "a.zarr")


def test_two_cells_of_a_frame_are_refused(tmp_path):
    text = CELL.format(30) + model(0, 40)
    assert "two cells" in refusal(write(tmp_path / "md.pdb", text))
    assert len(positions_of(write(tmp_path / "md.pdb", CELL.format(30) + model(0, 30)))) == 1


@pytest.mark.parametrize("end", ["", "TER\n"])
def test_a_pdb_without_end_is_told(tmp_path, end):
    path = write(tmp_path / "md.pdb", pdb(0, after=end))
    with mdio.open(path) as layout:
        assert "ends without END" in " ".join(layout.notes)
    for whole in ("END\n", "TER\nEND", "CONECT    1    2\n"):
        with mdio.open(write(path, pdb(0, after=whole))) as layout:
            assert "ends without END" not in " ".join(layout.notes)


@pytest.mark.parametrize("end", ["END\n", "ENDMDL\n", "TER\nEND\n", "ENDMDL\nEND\n"])
def test_frames_of_pdb_without_models(tmp_path, end):
    path = write(tmp_path / "md.pdb", "".join(pdb(frame, after=end) for frame in range(3)))
    assert positions_of(path)[:, 2].tolist() == [[2, 0, 0], [2, 1, 0], [2, 2, 0]]
    with mdio.open(path) as layout:
        assert layout.topology().n_atoms == 3
    other = write(tmp_path / "other.pdb", pdb(0, after=end) + pdb(1, after=end, n_atoms=4))
    assert "frame 1 (byte" in (text := refusal(other))
    assert "has 4 atoms, the first has 3" in text


def test_models_of_pdbqt_are_frames(tmp_path):
    lines = [line.rstrip() + "     0.000 C\n" for line in pdb(0).splitlines()]
    one = "MODEL 1\n" + "".join(lines) + "ENDMDL\n"
    assert len(positions_of(write(tmp_path / "a.pdbqt", one * 3))) == 3


def test_scaled_dumps_begin_at_the_corner(tmp_path):
    bounds = (((-5, 5),) * 3, ((-6, 6),) * 3)
    plain = [
        dump(n, rows=[(1, 1, *(low + s * (high - low) for s in (0.1, 0.2, 0.3)))], bounds=bounds[n])
        for n, ((low, high), *_) in enumerate(bounds)
    ]
    expected = positions_of(write(tmp_path / "plain.lammpstrj", "".join(plain)))
    np.testing.assert_allclose(expected[:, 0], [[1, 2, 3], [1.2, 2.4, 3.6]], rtol=1e-6)
    for kind in ("s", "su"):
        columns = "id type " + " ".join(f"{axis}{kind}" for axis in "xyz")
        frames = [
            dump(n, columns, [(1, 1, 0.1, 0.2, 0.3)], bounds=bounds[n], kinds="pp pp pp")
            for n in range(2)
        ]
        path = write(tmp_path / f"{kind}.lammpstrj", "".join(frames))
        np.testing.assert_allclose(positions_of(path), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("style", "length", "time", "velocity", "force"),
    [
        ("real", 1, 1e-3, 1e3, 4.184),
        ("metal", 1, 1, 1, 96.485332),
        ("si", 1e10, 1e12, 1e-2, 6.02214076e10),
        ("nano", 10, 1e3, 1e-2, 6.02214076e-2),
        ("electron", 0.52917721, 1e-3, 512.396, 4961.4753),
        ("lj", 1, 1, 1, 1),
    ],
)
def test_dumps_that_name_units_and_times(tmp_path, style, length, time, velocity, force):
    """Factors are those of LAMMPS' manual (units), in angstrom, ps and kJ/mol."""
    columns, row = "id x y z vx vy vz fx fy fz", (1, 1, 2, 3, 1, 1, 1, 1, 1, 1)
    frames = [dump(100 * n, columns, [row], before=f"ITEM: TIME\n{n / 4}") for n in range(3)]
    path = write(tmp_path / "md.lammpstrj", f"ITEM: UNITS\n{style}\n" + "".join(frames))
    with mdio.open(path) as layout:
        block = layout.read(0, 3)
        told = " ".join(layout.notes)
        assert layout.stored_times.has_times
    np.testing.assert_allclose(block.positions[0, 0], np.array([1, 2, 3]) * length, rtol=1e-6)
    np.testing.assert_allclose(block.box[:, :3], 20 * length, rtol=1e-6)
    np.testing.assert_allclose(block.time, np.arange(3) / 4 * time)
    np.testing.assert_allclose(block.velocities, velocity, rtol=1e-4)
    np.testing.assert_allclose(block.forces, force, rtol=1e-5)
    assert block.step.tolist() == [0, 100, 200]
    assert "times are made up" not in told
    assert ("no unit" in told) == (style == "lj")
    if style != "lj":
        with pytest.raises(OptionError, match="leave out --length-unit"):
            _ = mdio.open(path, length_unit="nm").info
    with pytest.raises(OptionError, match="leave out --timestep"):
        _ = mdio.open(path, dt=2).info


def test_the_interval_of_a_dump_is_that_of_its_frames(tmp_path):
    path = write(tmp_path / "run.lammpstrj", "".join(dump(100 * n) for n in range(5)))
    mdio.convert(path, tmp_path / "out.zarr", source_options={"dt": 0.002})
    for opened in (mdio.open(path, dt=0.002), mdio.open(tmp_path / "out.zarr")):
        with opened as layout:
            assert layout.info.dt_ps == pytest.approx(0.2)
            assert layout.info.times.endswith("every 0.2 ps")


def test_fields_are_those_of_the_frame_in_any_order(tmp_path):
    columns = ("id x y z", "id x y z vx vy vz")
    rows = ((1, 1, 1, 1), (1, 1, 1, 1, 2, 2, 2))
    frames = [dump(n, columns[n % 2], [rows[n % 2]]) for n in range(4)]
    path = write(tmp_path / "some.lammpstrj", "".join(frames))
    expected = [np.nan, 2, np.nan, 2]
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2)):
        with mdio.open(path) as layout:
            assert layout.info.has_velocities
            read = {n: layout.read(n, n + 1).velocities[0, 0, 0] for n in order}
        np.testing.assert_array_equal([read[n] for n in range(4)], expected)
    for workers in (1, 2):
        out = tmp_path / f"{workers}.zarr"
        mdio.convert(path, out, workers=workers, storage=mdio.Storage(chunk_frames=1))
        with mdio.open(out) as layout:
            np.testing.assert_array_equal(layout.read(0, 4).velocities[:, 0, 0], expected)
        assert mdio.verify(out, against=path).ok


@pytest.mark.parametrize(
    ("kinds", "box"),
    [("pp pp ff", [20, 20, 0]), ("ff pp sm", [0, 20, 0]), ("ss ss ss", [0, 0, 0])],
)
def test_axes_that_are_not_periodic_have_no_length(tmp_path, capsys, kinds, box):
    rows = [(1, 1, 1, 1, 1), (2, 1, 1, 1, 19)]
    path = write(tmp_path / "slab.lammpstrj", dump(0, rows=rows, kinds=kinds))
    with mdio.open(path) as layout:
        assert layout.read(0, 1).box[0, :3].tolist() == box
        assert "not periodic" in " ".join(layout.notes) or "no axis is periodic" in layout.notes[-1]
    if box[2] == 0:
        assert main(["analyze", "pairs", str(path), "-o", "-"]) == 0
        assert "18" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (dump(0) + dump(1, rows=[(1, 1, 1, 1, 1)]), "frame 1 (byte"),
        (dump(0, kinds="abc origin pp pp pp", bounds=((9, 0, 0, 0),) * 3), "general triclinic"),
        (dump(0) + dump(1, rows=[(1, 1, 0, 0, 0), (1, 1, 0, 0, 0)]), "two atoms have the id 1"),
        (dump(0) + dump(1, rows=[(1, 1, 0, 0, 0), (3, 1, 0, 0, 0)]), "id 3, which frame 0 "),
        (dump(0, "id type q", [(1, 1, 1)]), "without x y z"),
        (dump(0) + dump(1, rows=[(1, 1, 0, 0, 0), (2, 1, 0, "a", 0)]), "frame 1 cannot be read"),
        (dump(0, "", [("1",)])[:-1], "ATOMS names no columns"),
        (
            dump(0, before="ITEM: UNITS\nmetal") + dump(1, before="ITEM: UNITS\nreal"),
            "in units real",
        ),
        (dump(0) + dump(1, before="ITEM: UNITS\nreal"), "frame 1 (byte"),
        ("ITEM: TIMESTEP\n0\nITEM: NUMBER OF ENTRIES\n1\n", "NUMBER OF ENTRIES in place of"),
    ],
)
def test_dumps_that_are_refused_say_why(tmp_path, text, said):
    assert said in refusal(write(tmp_path / "a.lammpstrj", text))


def history(key=0, boundary=3, cell="9 0 0\n0 9 0\n0 0 9\n", **words):
    vectors = "".join(f"{n + 1}.0 2.0 3.0\n" for n in range(key + 1))
    atoms = words.get("atoms", (2, 1))
    line = words.get("line", f"timestep 500 {len(atoms)} {key} {boundary} 0.0005")
    rows = "".join(f"C {atom} 12.0 0.0\n{vectors}" for atom in atoms)
    return f"{line}\n{cell}{rows}"


@pytest.mark.parametrize(
    ("boundary", "cell", "box", "said"),
    [
        (0, "9 0 0\n0 9 0\n0 0 9\n", [0] * 6, "no axis is periodic (boundary key 0)"),
        (1, "9 0 0\n0 9 0\n0 0 9\n", [9, 9, 9, 90, 90, 90], ""),
        (3, "9 0 0\n3 4 0\n0 0 9\n", [9, 5, 9, 90, 90, 53.1301], ""),
        (3, "0 9 0\n9 0 0\n0 0 9\n", [0] * 6, "rotated"),
        (3, "9 0 0\n3 4 0\n1 2 -9\n", [0] * 6, "rotated"),  # and mirrored
        (6, "9 0 0\n0 9 0\n0 0 9\n", [9, 9, 0, 90, 90, 90], "axis z is not periodic"),
        (4, "9 0 0\n0 9 0\n0 0 9\n", [0] * 6, "a truncated octahedron"),
        (0, "", [0] * 6, ""),
    ],
)
def test_boundaries_of_histories(tmp_path, boundary, cell, box, said):
    """Keys as in DL_POLY's manual: none, cubic, orthorhombic, parallelepiped, slab and others."""
    path = write(tmp_path / "HISTORY", "title\n0 0 2\n" + history(0, boundary, cell) * 2)
    with mdio.open(path) as layout:
        np.testing.assert_allclose(layout.read(0, 1).box[0], box, atol=1e-4)
        notes = " ".join(layout.notes)
    assert said in notes and bool(said) == bool(notes)


def test_histories_have_steps_times_and_units(tmp_path):
    text = history(2) + history(2, line="timestep 900 2 2 3 0.0005 0.75", atoms=(1, 2))
    path = write(tmp_path / "HISTORY", "title\n2 3 2\n" + text)
    with mdio.open(path) as layout:
        block = layout.read(0, 2)
        assert layout.notes == () and layout.info.dt_ps == pytest.approx(0.5)
    assert block.step.tolist() == [500, 900] and block.time.tolist() == [0.25, 0.75]
    np.testing.assert_allclose(block.velocities[0, 0], [2, 2, 3])
    np.testing.assert_allclose(block.forces[0, 0], [0.03, 0.02, 0.03])


def test_atoms_of_histories_are_the_same_in_all_frames(tmp_path):
    path = write(tmp_path / "HISTORY", "t\n0 3 2\n" + history() + history(atoms=(1, 3)))
    assert "number 3" in refusal(path)
    write(path, "t\n0 3 2\n" + history(atoms=(1, 2, 3)) + history(atoms=(1, 2, 1)))
    assert "two atoms have the number 1" in refusal(path)


@pytest.mark.parametrize("name", ["md.mdcrd", "md.crd", "md.x", "md.crd.000", "md"])
def test_trajectories_of_amber_under_any_name(tmp_path, name):
    rows = "   1.000   2.000   3.000   4.000   5.000   6.000\n"
    path = write(tmp_path / name, "TEST\n" + rows * 2)
    assert positions_of(path, n_atoms=2).tolist() == [[[1, 2, 3], [4, 5, 6]]] * 2
    assert "(are these the file's atoms?)" in refusal(path, n_atoms=3)


def test_frames_of_amber_behind_a_blank_line_are_told(tmp_path):
    """As of two files written into one, of which the second has an empty title."""
    rows = "TEST\n   1.000   2.000   3.000   4.000   5.000   6.000\n"
    path = write(tmp_path / "md.mdcrd", rows + rows.replace("TEST", ""))
    with mdio.open(path, n_atoms=2) as layout:
        assert layout.info.n_frames == 1
        (left,) = layout.info.lost
        assert left.nbytes == len(rows) - 4 and "1 whole frame before it" in str(left)
    write(path, rows + "\n \n")
    with mdio.open(path, n_atoms=2) as layout:
        assert layout.info.lost == ()


def test_boxes_of_one_atom_of_amber_cannot_be_told(tmp_path):
    path = write(tmp_path / "md.mdcrd", "TEST\n" + "   1.000   2.000   3.000\n" * 2)
    with mdio.open(path, n_atoms=1) as layout:
        assert layout.info.n_frames == 2 and "--format CRDBOX" in " ".join(layout.notes)
    with mdio.open(path, n_atoms=1, format="CRDBOX") as layout:
        assert layout.info.n_frames == 1 and "one atom" not in " ".join(layout.notes)


def test_boxes_of_amber_are_told_to_have_no_angles(tmp_path):
    text = "TEST\n   1.000   2.000   3.000   4.000   5.000   6.000\n  20.000  21.000  22.000\n"
    path = write(tmp_path / "md.mdcrd", text)
    with mdio.open(path, n_atoms=2) as layout:
        assert layout.read(0, 1).box[0].tolist() == [20, 21, 22, 90, 90, 90]
        assert "no angles of the box" in " ".join(layout.notes)
    # mdtraj puts spaces between the lengths.
    write(path, text.replace("  21.000  22.000", "   21.000  1022.000"))
    with mdio.open(path, n_atoms=2) as layout:
        assert layout.info.lost == ()
        assert layout.read(0, 1).box[0].tolist() == [20, 21, 1022, 90, 90, 90]
    write(path, text.replace("   6.000", "********"))
    assert "stars in place of a number" in refusal(path, n_atoms=2)


@pytest.mark.parametrize(
    ("rows", "is_whole"),
    [
        (["C 1.234 2.345 3.456", "C 1.234 2.345 3.456"], True),
        (["C 1.234 2.345 3.456", "C 1.234 2.345 3.45"], False),
        (["C 1.234 2.345 3.456", "C 1.234 2.345"], False),
        (["C 1 2 3", "C 4 5 6"], False),
        (["C 0.5 0.123456 12.3456", "C 1.5 2 0.123456"], True),
        (["C 0.5 0.123456 12.3456", "C 1.5 2 0.12345"], False),
    ],
)
def test_a_last_line_without_an_end(tmp_path, rows, is_whole):
    first = f"2\n\n{rows[0]}\n{rows[0]}\n"
    path = write(tmp_path / "a.xyz", first + "2\n\n" + "\n".join(rows))
    with mdio.open(path) as layout:
        assert (layout.info.n_frames, bool(layout.info.lost)) == (1 + is_whole, not is_whole)
    if not is_whole:
        alone = write(tmp_path / "alone.xyz", "2\n\n" + "\n".join(rows))
        assert "put a newline there" in refusal(alone) or "cannot be read" in refusal(alone)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.xyz", "3\n\nC 10 20 30\nC 1 2\nC 10 20 30\n", "'C 1 2'"),
        ("a.xyz", "3\n\nC 1 2 3\nC 1 2 3\nC 1 x 3\n", "'C 1 x 3'"),
        ("a.arc", "3 t\n1 C 1 2 3 1\n2 C 1 2 q 1\n3 C 1 2 3 1\n", "'2 C 1 2 q 1'"),
        (
            "a.lammpstrj",
            dump(0, rows=[(1, 1, 1, 1, 1), (2, 1, 1, 1), (3, 1, 1, 1, 1)]),
            "'2 1 1 1'",
        ),
    ],
)
def test_the_line_that_cannot_be_read_is_shown(tmp_path, name, text, line):
    text = refusal(write(tmp_path / name, text))
    assert f"{line}, unlike other lines" in text and "frame 0" in text
    assert "inhomogeneous" not in text


def test_what_is_told_of_columns_that_are_not_read_ends_no_dump(tmp_path):
    text = dump(0, "id x y z element", [(1, 1, 1, 1, "Cl"), (2, 1, 1, 1, "C")])
    assert len(positions_of(write(tmp_path / "a.lammpstrj", text.rstrip("\n")))) == 1


def test_names_ending_in_gz_of_files_that_are_not_packed(tmp_path):
    path = write(tmp_path / "a.xyz.gz", "1\n\nC 1 2 3\n")
    assert positions_of(path).tolist() == [[[1, 2, 3]]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.xyz", "1\n i = {}, time = 1.000, E = -1\nAr 0 0 0\n"),
        ("a.gro", "t= 1.0 step= {}\n1\n    1AR      AR    1   0.100   0.200   0.300\n1 1 1\n"),
    ],
)
def test_a_step_that_no_64_bits_hold_is_told(tmp_path, name, text):
    assert f"{10**20}" in refusal(write(tmp_path / name, text.format(10**20)))

"""Kernels of others: a class at an address, or of a package with an entry point."""

import tomllib
from importlib import metadata

import MDAnalysis as mda
import numpy as np
import pytest
from docs.pages import ROOT, blocks_of
from MDAnalysisTests.datafiles import DCD, GRO, PSF, TRR
from numpy.testing import assert_allclose
from suites.plug_ins import install_plug_ins

import mdio
from mdio.analysis.kernels.kernel import Kernel, Prepared, other_kernels
from mdio.cli.main import main
from mdio.core.errors import PlanError

MODULE = """
from dataclasses import dataclass
from mdio.analysis.kernels.kernel import Kernel, Prepared


def heights(block):
    return block.positions[:, :, 2].max(axis=1)


@dataclass(frozen=True)
class Heights(Kernel):
    select: str | None = None
    degrees: bool = False

    def prepare(self, system):
        return Prepared(heights, system.select(self.select), labels=("height_angstrom",))
"""


def spread_of(block):
    return block.positions.std(axis=(1, 2))


class Spread(Kernel):
    """Standard deviation of all coordinates."""

    def __init__(self, select=None):
        self.select = select

    def prepare(self, system):
        return Prepared(spread_of, system.select(self.select), labels=("spread_angstrom",))


class NoKernel:
    """Something else."""


@pytest.fixture
def installed(monkeypatch):
    def install(**classes):
        install_plug_ins(monkeypatch, "mdio.kernels", classes)
        other_kernels.cache_clear()

    yield install
    other_kernels.cache_clear()


def test_a_class_at_an_address(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_kernels_8.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    words = ["analyze", "my_kernels_8:Heights", DCD, "-s", PSF, "--select", "name CA"]
    assert main([*words, "-w", "2", "-o", "a.csv", "--degrees"]) == 0
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == "frame,time_ps,height_angstrom"
    of_function = mdio.analyze(DCD, top=PSF, kernel="my_kernels_8:heights", select="name CA")
    of_class = mdio.analyze(DCD, top=PSF, kernel="my_kernels_8:Heights", select="name CA")
    assert np.array_equal(of_function.values, of_class.values)
    assert main([*words, "--superpose"]) == 2
    assert (
        "--superpose is for rmsd and rmsf, not for my_kernels_8:Heights" in capsys.readouterr().err
    )


def test_a_name_of_another_package(installed, capsys):
    installed(spread=Spread)
    result = mdio.analyze(DCD, top=PSF, kernel="spread", select="name CA")
    with mdio.open(DCD) as layout:
        ca = np.flatnonzero(result.frame >= 0)[:1]  # the first frame is enough to compare with
        atoms = mda.Universe(PSF, DCD).select_atoms("name CA").indices
        positions = layout.read(0, 1, atoms=atoms).positions
    assert_allclose(result.values[ca], positions.std(axis=(1, 2)), rtol=1e-6)
    assert main(["analyze", "spread", DCD, "-s", PSF]) == 0
    assert "spread_angstrom" in capsys.readouterr().out
    with pytest.raises(PlanError, match="vacf, reference-distances, spread, or name your own"):
        mdio.analyze(DCD, top=PSF, kernel="nothing")
    with pytest.raises(PlanError, match="did you mean 'spread'"):
        mdio.analyze(DCD, top=PSF, kernel="spred")


def test_those_that_cannot_be_used_are_told_to_those_who_ask_for_them(installed, recwarn):
    installed(rmsd=Spread, none=NoKernel, spread=Spread)
    assert mdio.analyze(DCD, top=PSF, kernel="spread").n_frames == 98
    with pytest.raises(PlanError) as error:
        mdio.analyze(DCD, top=PSF, kernel="none")
    assert "there is no kernel 'none': " in str(error.value)
    assert "is left out: " in str(error.value) and "not a subclass of" in str(error.value)
    assert not [one for one in recwarn if "left out" in str(one.message)]
    assert mdio.analyze(DCD, top=PSF, kernel="rmsd").labels == ("rmsd_angstrom",)


class Lag(Spread):
    """A kernel with an option that analyze has, too."""

    def __init__(self, select=None, step=1):
        super().__init__(select)
        self.step = step


def test_an_option_of_a_kernel_that_analyze_has_is_refused(installed):
    installed(lag=Lag)
    with pytest.raises(PlanError, match="step is an option of analyze and of the kernel 'lag'"):
        mdio.analyze(DCD, top=PSF, kernel="lag", step=50)
    assert mdio.analyze(DCD, top=PSF, kernel=Lag(step=50), step=49).n_frames == 2


def test_ours_are_found_without_looking_for_others(monkeypatch):
    def fail(**words):
        raise AssertionError("looked for")

    other_kernels.cache_clear()
    monkeypatch.setattr(metadata, "entry_points", fail)
    assert mdio.analyze(DCD, top=PSF, kernel="rmsd").n_frames == 98


def test_a_function_of_another_package_is_a_kernel(installed):
    installed(heights=spread_of)
    values = mdio.analyze(DCD, top=PSF, kernel="heights", select="name CA").values
    assert np.array_equal(
        values, mdio.analyze(DCD, top=PSF, kernel=spread_of, select="name CA").values
    )


def test_the_package_of_the_tutorial(monkeypatch, tmp_path):
    blocks = blocks_of(ROOT / "docs/tutorials/kernel.md")
    project = next(tomllib.loads(block.text) for block in blocks if block.kind == "toml")
    (module,) = project["tool"]["setuptools"]["py-modules"]
    source = next(block.text for block in blocks if block.file == f"{module}.py")
    info = tmp_path / f"{module}-0.1.dist-info"
    info.mkdir()
    points = project["project"]["entry-points"]["mdio.kernels"]
    lines = (f"{name} = {value}" for name, value in points.items())
    (info / "entry_points.txt").write_text("\n".join(["[mdio.kernels]", *lines]))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0.1\n")
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    other_kernels.cache_clear()
    try:
        got = mdio.analyze(TRR, kernel="speed", select=None, mean=True, top=GRO, stop=2)
    finally:
        other_kernels.cache_clear()
    ca = mda.Universe(GRO).select_atoms("name CA").indices
    velocities = mdio.open(TRR).read(0, 2, atoms=ca).velocities
    assert_allclose(got.values, np.linalg.norm(velocities, axis=2).mean(axis=1), rtol=1e-6)

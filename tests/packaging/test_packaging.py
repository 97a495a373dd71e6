"""What ships mdio says the same as setup.cfg: version, Python, dependencies."""

import ast
import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mdio._version import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
CONFIG = configparser.ConfigParser()
CONFIG.read(ROOT / "setup.cfg")


def needed(text):
    """Return names and least versions: ``{"numpy": "2.0"}``."""
    return dict(re.match(r"([\w-]+)>=([\d.]+)", line).groups() for line in text.split())


REQUIRES = needed(CONFIG["options"]["install_requires"].lower())


def same_version(one, other):
    """Say whether ``2`` and ``2.0`` are meant alike."""
    return re.sub(r"(\.0)+$", "", one) == re.sub(r"(\.0)+$", "", other)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    out = tmp_path_factory.mktemp("release")
    sdist = out / "sdist.tar.gz"
    sdist.write_bytes(b"an archive")
    words = ["--home", "https://example.org/mdio/", "--owner", "someone"]
    words += ["--sdist", str(sdist), "--out", str(out)]
    subprocess.run([sys.executable, str(PACKAGING / "fill.py"), *words], check=True)
    return out


def test_nothing_is_left_to_fill_in(filled):
    texts = [
        path.read_text() for path in filled.rglob("*") if path.suffix in (".yaml", ".py", ".eb")
    ]
    assert len(texts) == 5
    assert not any(word in text for text in texts for word in ("HOME_URL", "OWNER", "SHA256"))


def test_conda(filled):
    recipe = yaml.safe_load((filled / "conda/recipe.yaml").read_text())
    assert recipe["context"]["version"] == __version__
    run = {line.split()[0]: line.partition(">=")[2] for line in recipe["requirements"]["run"]}
    assert run.pop("python") == ""
    assert run == REQUIRES


def test_spack(filled):
    text = (filled / "spack/package.py").read_text()
    ast.parse(text)
    assert f'version("{__version__}"' in text
    found = dict(re.findall(r'depends_on\("py-([\w-]+)@([\d.]+):"', text))
    assert all(same_version(found[name], least) for name, least in REQUIRES.items())


def test_easybuild(filled):
    (path,) = filled.glob("easybuild/*.eb")
    assert path.name.startswith(f"mdio-{__version__}-")
    values = {}
    exec(compile(path.read_text(), str(path), "exec"), values)
    assert values["version"] == __version__
    assert ("mpi4py" in dict(values["dependencies"])) and values["moduleclass"] == "bio"


REQUIRED = {
    "project_name": str,
    "authors": list,
    "maintainers": list,
    "description": str,
    "keywords": list,
    "license": str,
    "project_home": str,
    "documentation_home": str,
    "documentation_type": str,
    "python_requires": str,
    "mdanalysis_requires": str,
    "import_name": str,
    "src_install": list,
    "run_tests": list,
    "test_dependencies": list,
    "project_org": str,
}
"""What the registry of MDAnalysis toolkits asks for, in its template."""
OPTIONAL = {"install", "development_status", "publications", "community_home", "changelog"}


def test_mdakit(filled):
    entry = yaml.safe_load((filled / "mdakit/metadata.yaml").read_text())
    assert all(isinstance(entry[name], kind) and entry[name] for name, kind in REQUIRED.items())
    assert entry.keys() <= REQUIRED.keys() | OPTIONAL
    assert entry["run_tests"][0] == "git clone latest"  # its word for the release, or main
    assert entry["python_requires"] == CONFIG["options"]["python_requires"]
    assert entry["mdanalysis_requires"].startswith(f">={REQUIRES['mdanalysis']}")
    for folder in re.findall(r"tests/[\w/]+", " ".join(entry["run_tests"])):
        assert (ROOT / folder).is_dir()


def test_citation_and_workflows_are_whole():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"]
        assert all(job["runs-on"] and job["steps"] for job in jobs.values())


def test_the_paper_cites_what_its_bibliography_has():
    paper = (PACKAGING / "joss/paper.md").read_text()
    entries = (PACKAGING / "joss/paper.bib").read_text()
    cited = set(re.findall(r"@(\w+)[\];]", paper))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", entries, re.MULTILINE))
    sections = re.findall(r"^# (.+)$", paper, re.MULTILINE)
    assert {"Summary", "Statement of need", "State of the field", "References"} <= set(sections)

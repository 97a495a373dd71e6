"""The wheel on each Python, with the newest and the oldest dependencies, away from the sources."""

import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.keywords = "not develop"

TESTED = ["core", "layouts", "readers", "converters", "analysis", "cli", "mapreduce"]
NEEDED = ["tests", "docs", "bench", "packaging", "README.md", "CHANGELOG.md", "setup.cfg"]
# Where these have no wheel for a Python, their first one that has is the oldest.
COMPILED = [
    "MDAnalysis",
    "google-crc32c",
    "h5py",
    "matplotlib",
    "netCDF4",
    "numcodecs",
    "numpy",
    "scipy",
]
DEVELOP = "git+https://github.com/MDAnalysis/mdanalysis.git@develop#subdirectory=package"


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
@nox.parametrize("dependencies", ["newest", "oldest", "develop"])
def wheel(session: nox.Session, dependencies: str) -> None:
    """Build, install and test; what needs MPI is left out. After `--` come options of pytest."""
    away = Path(session.create_tmp()).resolve()
    shutil.rmtree(away)
    session.run("uv", "build", "--quiet", "--out-dir", str(away / "dist"), external=True)
    (built,) = (away / "dist").glob("*.whl")
    if dependencies == "oldest":
        # The package's own; what the tests need besides is new, but for data of the same version.
        session.install(
            "--resolution=lowest-direct",
            *(f"--only-binary={name}" for name in COMPILED),
            *("--requirements", "setup.cfg"),
            *("--extra", "dask", "--extra", "advise", "--extra", "report"),
            "MDAnalysisTests>=2.10",
        )
    session.install(f"{built}[dask,advise,report,docs,test]")
    if dependencies == "develop":
        session.install(DEVELOP)
    for name in [*NEEDED, "pyproject.toml", "mdio/native"]:
        copy = shutil.copytree if Path(name).is_dir() else shutil.copy
        (away / name).parent.mkdir(parents=True, exist_ok=True)
        copy(name, away / name)
    session.chdir(away)
    # Old versions warn of each other; what we are warned of, the newest tell.
    warnings = ["-W", "default"] if dependencies == "oldest" else []
    folders = [f"tests/{name}" for name in TESTED]
    session.run("python", "-m", "pytest", *warnings, *(session.posargs or ["-n", "2"]), *folders)

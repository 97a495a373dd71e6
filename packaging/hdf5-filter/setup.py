"""Builds HDF5's filter of mdio's integers, from a clone of mdio: it has the same native code.

``pip install ./packaging/hdf5-filter``; nothing but a C++ compiler is needed.
"""

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CODECS = Path(__file__).parent.resolve().parent.parent / "mdio/native/codecs"
FILTERS = {"": "33165", "_former": "397"}
"""Numbers of the filter, in files of today and of older versions."""
FLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-fno-math-errno"]
if platform.machine() not in ("x86_64", "AMD64"):
    FLAGS.append("-ffp-contract=off")  # as in mdio's own setup.py


class Plugin(build_ext):
    """A library that HDF5 opens: no module of Python, but for its place."""

    def get_ext_filename(self, name: str) -> str:
        """Return a name that HDF5 looks for."""
        return f"{name.replace('.', '/')}.so"


setup(
    name="mdio-hdf5-filter",
    version="0.1.0",
    description="HDF5 filter that reads molecular-dynamics trajectories packed by mdio",
    packages=["mdio_hdf5_filter"],
    python_requires=">=3.9",
    install_requires=["h5py"],
    cmdclass={"build_ext": Plugin},
    libraries=[
        (
            "mdio_codecs",
            {
                "sources": sorted(map(str, CODECS.glob("*.cpp"))),
                "include_dirs": [str(CODECS)],
                "cflags": FLAGS,
            },
        )
    ],
    ext_modules=[
        Extension(
            f"mdio_hdf5_filter.libmdio_hdf5_filter{suffix}",
            ["filter.cpp"],
            include_dirs=[str(CODECS)],
            define_macros=[("MDIO_FILTER", number)],
            extra_compile_args=FLAGS,
            language="c++",
        )
        for suffix, number in FILTERS.items()
    ],
)

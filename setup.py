"""Builds the two native modules, which mdio needs; everything else is in setup.cfg."""

import platform
from glob import glob

from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup

FLAGS = ["-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-fno-math-errno"]
# Rounded once for each operation, where instructions that do two of them are not asked for by name.
if platform.machine() not in ("x86_64", "AMD64"):
    FLAGS.append("-ffp-contract=off")

setup(
    ext_modules=[
        Pybind11Extension(
            f"mdio.{name}",
            sorted(p for folder in folders for p in glob(f"mdio/native/{folder}/*.cpp")),
            depends=sorted(glob("mdio/native/*/*.h")),
            include_dirs=["mdio/native/codecs"],
            define_macros=[("MDIO_SWITCHES", "1")],
            cxx_std=17,
            extra_compile_args=FLAGS,
        )
        for name, folders in (("_kernels", ("kernels", "codecs")), ("_xtc", ("xtc",)))
        if glob(f"mdio/native/{folders[0]}/*.cpp")
    ]
)

#!/usr/bin/env bash
# Makes .venv-mpi: mdio with MPICH, mpi4py and parallel HDF5 (make mpi).
#
# PyPI's wheels of h5py know no MPI, so h5py and mpi4py are built here against one and the same
# MPICH, Debian's. The built wheels are kept under ~/.cache/mdio, so that a second environment takes
# a minute; with nothing changed the script ends at once. .venv-mpi/bin/mpiexec is the launcher that
# belongs to it.
set -euo pipefail
cd "$(dirname "$0")"

PYTHON=${PYTHON:-python3}
VENV=.venv-mpi
STAMP=$VENV/installed
PACKAGES=(mpich libmpich-dev libhdf5-mpich-dev gcc g++ libc6-dev)

advice() {
    cat >&2 <<TEXT
setup-mpi.sh: $1
mdio needs one MPI, and mpi4py and h5py built with that same MPI. Ways to get them:
  Debian, Ubuntu   as root: apt-get install ${PACKAGES[*]}; then run this script again
  a cluster        load its modules, e.g. module load mpich hdf5-parallel; then, in a fresh venv,
                   MPICC=mpicc pip install --no-binary mpi4py mpi4py
                   HDF5_MPI=ON CC=mpicc HDF5_DIR=<its folder> pip install --no-binary h5py h5py
                   pip install -e '.[test]'
  conda-forge      conda create -n mdio-mpi -c conda-forge python=3.11 mpich mpi4py 'h5py=*=mpi_mpich*'
                   then, in that environment, pip install -e '.[test]'
  Spack            spack install py-h5py+mpi ^mpich; spack load py-h5py py-mpi4py
                   then, in a venv with --system-site-packages, pip install -e '.[test]'
TEXT
    exit 1
}

hdf5_folder() {
    local triplet
    triplet=$(gcc -print-multiarch 2>/dev/null) || return 1
    test -f "/usr/lib/$triplet/hdf5/mpich/include/H5public.h" || return 1
    echo "/usr/lib/$triplet/hdf5/mpich"
}

# The names with .mpich are Debian's, and mean MPICH whatever else is installed or comes first.
have_packages() {
    command -v mpicc.mpich mpiexec.mpich gcc g++ >/dev/null && hdf5_folder >/dev/null
}

install_packages() {
    command -v apt-get >/dev/null ||
        advice "this is not a Debian or Ubuntu system (there is no apt-get)"
    test "$(id -u)" = 0 ||
        advice "Debian's MPICH and parallel HDF5 are not installed, and only root can install them"
    echo "installing ${PACKAGES[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${PACKAGES[@]}"; } \
        >/dev/null; then
        advice "apt-get could not install ${PACKAGES[*]}"
    fi
    have_packages || advice "the packages are installed, but mpicc.mpich or parallel HDF5 is missing"
}

have_packages || install_packages
HDF5=$(hdf5_folder)
"$PYTHON" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    advice "$PYTHON is not Python 3.11 or newer with the venv module; say PYTHON=... make mpi"
test -f "$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ||
    advice "the headers of $PYTHON are missing (Debian: python3-dev)"

python_key=$("$PYTHON" -c 'import sys, platform
print(f"{sys.implementation.cache_tag}-{platform.machine()}")')
mpich_version=$(mpiexec.mpich --version | sed -n 's/^ *Version: *//p')
hdf5_version=$(sed -n 's/^#define *H5_VERS_INFO *"HDF5 library version: *\([^"]*\)".*/\1/p' \
    "$HDF5/include/H5public.h")
KEY=$python_key-mpich$mpich_version-hdf5_$hdf5_version
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/mdio/wheels/$KEY

up_to_date() {
    test -f "$STAMP" && test "$(cat "$STAMP")" = "$KEY" || return 1
    local file
    for file in setup-mpi.sh setup.cfg setup.py pyproject.toml mdio/_version.py \
        mdio/native/*/*.cpp mdio/native/*/*.h; do
        if test "$file" -nt "$STAMP"; then return 1; fi
    done
}

if up_to_date; then exit 0; fi
if test -d $VENV && test "$(cat $VENV/key 2>/dev/null)" != "$KEY"; then
    echo "$VENV was made with another Python, MPI or HDF5: making it anew" >&2
    rm -rf $VENV
fi
test -x $VENV/bin/python || "$PYTHON" -m venv $VENV
rm -f "$STAMP"
echo "$KEY" >$VENV/key
# No link: MPICH's launcher looks for its helpers in the folder from which it was called.
printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v mpiexec.mpich)" >$VENV/bin/mpiexec
chmod +x $VENV/bin/mpiexec
PIP=("$VENV/bin/python" -m pip -qq --disable-pip-version-check)

# cached NAME COMMAND...: the command builds one wheel into the folder that is appended to it.
cached() {
    local name=$1 built
    shift
    if ! compgen -G "$CACHE/$name-*.whl" >/dev/null; then
        echo "building $name (once; it takes some minutes)" >&2
        mkdir -p "$CACHE"
        built=$(mktemp -d "$CACHE/.build-XXXXXX")
        "$@" "$built" || { rm -rf "$built"; advice "$name could not be built"; }
        mv "$built"/"$name"-*.whl "$CACHE/"
        rm -rf "$built"
    fi
    "${PIP[@]}" install --no-deps "$CACHE/$name"-*.whl
}

build_mpi4py() {
    CC=mpicc.mpich MPICC=mpicc.mpich CFLAGS="-O1 -g0" \
        "${PIP[@]}" wheel --no-deps --no-cache-dir --no-binary mpi4py mpi4py --wheel-dir "$1"
}

build_h5py() {
    HDF5_MPI=ON CC=mpicc.mpich CFLAGS="-O2 -g0" HDF5_DIR=$HDF5 \
        "${PIP[@]}" wheel --no-deps --no-cache-dir --no-build-isolation --no-binary h5py h5py \
        --wheel-dir "$1"
}

"${PIP[@]}" install --upgrade pip "setuptools>=77" cython pkgconfig "numpy>=2.0"
cached mpi4py build_mpi4py
cached h5py build_h5py
"${PIP[@]}" install -e ".[test]"

# Two ranks that write one file together: what two mixed MPIs could not do.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat >"$scratch/check.py" <<'PY'
import sys

import h5py
from mpi4py import MPI

comm = MPI.COMM_WORLD
found = MPI.Get_library_version()
if not found.startswith("MPICH") or not h5py.get_config().mpi or comm.size != 2:
    sys.exit(f"expected 2 ranks of MPICH and an h5py with MPI, found {comm.size} of {found!r}")
with h5py.File(sys.argv[1], "w", driver="mpio", comm=comm) as file:
    file.create_dataset("rank", shape=(2,), dtype="i4")[comm.rank] = comm.rank + 1
with h5py.File(sys.argv[1], "r", driver="mpio", comm=comm) as file:
    if file["rank"][:].tolist() != [1, 2]:
        sys.exit("what two ranks wrote into one file did not come back")
PY
timeout 120 $VENV/bin/mpiexec -n 2 $VENV/bin/python "$scratch/check.py" "$scratch/both.h5" ||
    advice "two ranks could not write one file with parallel HDF5"
echo "$KEY" >"$STAMP"
echo "$VENV is ready: $VENV/bin/mpiexec -n 2 $VENV/bin/mdio ..." >&2

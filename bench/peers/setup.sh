#!/usr/bin/env bash
# Installs the programs that mdio is timed beside (make peers): .venv-peers, .venv-zarrtraj, gmx.
#
# What cannot be installed is noted in .venv-peers/missing and left out; the benches say so.
set -uo pipefail
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-python3}
PEERS=.venv-peers
ZARRTRAJ=.venv-zarrtraj
KEY=$(cat bench/peers/setup.sh bench/peers/molly/Cargo.toml bench/peers/molly/src/main.rs | cksum)

if test "$(cat $PEERS/installed 2>/dev/null)" = "$KEY" && ! test -s $PEERS/missing; then exit 0; fi

test -x $PEERS/bin/python || "$PYTHON" -m venv $PEERS || exit 1
: >$PEERS/missing

missing() {
    echo "$1: $2" | tee -a $PEERS/missing >&2
}

into() {
    local venv=$1
    shift
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"
}

# tables is what mdconvert writes HDF5 with.
for package in numpy "mdtraj tables" chemfiles xtclib mdz; do
    # shellcheck disable=SC2086
    into $PEERS $package || missing "${package%% *}" "pip could not install it"
done

# zarrtraj works with zarr 2 only.
test -x $ZARRTRAJ/bin/python || "$PYTHON" -m venv $ZARRTRAJ
into $ZARRTRAJ zarrtraj 'zarr<3' || missing zarrtraj "pip could not install it"

if command -v cargo >/dev/null; then
    CARGO_TARGET_DIR=$PWD/$PEERS/molly cargo build --quiet --release \
        --manifest-path bench/peers/molly/Cargo.toml || missing molly "cargo could not build it"
else
    missing molly "cargo is not installed"
fi

if ! command -v gmx >/dev/null; then
    if test "$(id -u)" = 0 && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        { apt-get update -qq && apt-get install -qq -y --no-install-recommends gromacs; } \
            >/dev/null || missing GROMACS "apt-get could not install it"
    else
        missing GROMACS "gmx is not on PATH, and only root can install it (apt-get install gromacs)"
    fi
fi

echo "$KEY" >$PEERS/installed

#!/bin/sh
# build.sh SOURCES PROGRAM: builds GROMACS' reader of H5MD alone, from a clone of GROMACS 2026.
#
# It takes the class H5md and what that needs of the utilities, as they are, and a minute; all of
# GROMACS takes an hour on two cores. Of HDF5 it needs the C library and its h5cc (or h5pcc). With
# PROGRAM on the PATH as gmx-h5md, tests read what is written for GROMACS with it.
set -e
here=$(cd "$(dirname "$0")" && pwd)
sources=$1
program=$2
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir -p "$made/gromacs"
# What CMake would configure: HDF5, and nothing else.
for name in config gmxpre-config; do
    sed -e 's/#cmakedefine01 GMX_USE_HDF5/#define GMX_USE_HDF5 1/' \
        -e 's/#cmakedefine01 \([A-Za-z0-9_]*\).*/#define \1 0/' \
        -e 's/#cmakedefine \([A-Za-z0-9_]*\).*//' -e 's/@[A-Za-z_0-9]*@/0/g' \
        "$sources/src/$name.h.cmakein" >"$made/$name.h"
done
echo '#define LIBGROMACS_EXPORT' >"$made/gromacs/libgromacs_export.h"
ln -s "$(cd "$sources/src/external" && pwd)" "$made/gromacs/external"
h5cc=$(command -v h5cc || command -v h5pcc)
hdf5=$($h5cc -show | cut -d' ' -f2-)
flags="-std=c++20 -O1 -w -ffunction-sections -DHAVE_CONFIG_H -I$made"
for word in $hdf5; do
    case $word in -I* | -D*) flags="$flags $word" ;; esac
done
for folder in src src/include src/external api/legacy/include src/gromacs/utility/include \
    src/gromacs/math/include src/gromacs/topology/include; do
    flags="$flags -I$sources/$folder"
done
for file in "$here/read.cpp" \
    "$sources"/src/gromacs/fileio/h5md/[!t]*.cpp \
    $(printf "$sources/src/gromacs/utility/%s.cpp " cstringutil errorcodes errorformat exceptions \
        fatalerror fileredirector filestream gmxassert message_string_collector path \
        programcontext smalloc strconvert stringutil textwriter); do
    case $file in
    *topologyutils.cpp) continue ;; # for writing
    esac
    # shellcheck disable=SC2086
    "${CXX:-g++}" $flags $CXXFLAGS -c "$file" -o "$made/$(echo "$file" | tr / _).o"
done
# shellcheck disable=SC2086
"${CXX:-g++}" -o "$program" "$made"/*.o -Wl,--gc-sections $hdf5 $LDFLAGS

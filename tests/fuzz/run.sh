#!/bin/sh
# Fuzzes the native code and the chunks of quantised positions: run.sh SECONDS (of each target).
# Needs clang with libFuzzer (Debian: apt-get install clang libclang-rt-14-dev). What is learnt stays
# in build/fuzz/corpus and is gone on with; inputs that fail are left in build/fuzz/failures.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-60}
python=${PYTHON:-.venv/bin/python}
compiler=${CXX_FUZZ:-clang++}
work=build/fuzz
command -v "$compiler" >/dev/null || {
    echo "$compiler is needed: apt-get install clang libclang-rt-14-dev" >&2
    exit 1
}
mkdir -p $work/failures
"$python" tests/fuzz/seeds.py $work/seeds
for target in xtc kernels codecs; do
    sources=$(find mdio/native/$target -name '*.cpp' ! -name 'module*.cpp')
    "$compiler" -std=c++17 -O1 -g -fsanitize=fuzzer,address,undefined \
        -fno-sanitize-recover=all -DMDIO_SWITCHES -Imdio/native/$target -Imdio/native/codecs \
        tests/fuzz/fuzz_$target.cpp $sources -pthread -o $work/fuzz_$target
    mkdir -p $work/corpus/$target
    found=$(find tests/fuzz/found -mindepth 1 -name $target)
    echo "fuzz_$target for $seconds s"
    $work/fuzz_$target -max_total_time="$seconds" -max_len=20000 -timeout=10 -rss_limit_mb=2048 \
        -verbosity=0 -print_final_stats=1 -artifact_prefix=$work/failures/$target- \
        $work/corpus/$target $work/seeds/$target $found
done
echo "chunks for $seconds s"
"$python" tests/fuzz/fuzz_chunks.py "$seconds" $work/failures/chunk

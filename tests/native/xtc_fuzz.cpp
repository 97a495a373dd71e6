// A libFuzzer target for the XTC decoder. With clang, from the repository's root:
//
//   clang++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
//       tests/native/xtc_fuzz.cpp mdio/native/xtc/{decode,header}.cpp -o xtc_fuzz
//   mkdir -p corpus && head -c 4000 SMALL.xtc > corpus/seed   # one whole frame is best
//   ./xtc_fuzz -max_len=8192 corpus
#include "mutate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t nbytes) {
    xtc_test::decode_everything(bytes, nbytes);
    return 0;
}

// Symbols to vectors and back, on any processor.
#define MDIO_LANES_TARGET
#define MDIO_LANES 4
#define MDIO_LANES_NAME four
#include "rigid_models_loops.h"
#include "rigid_vectors_loops.h"
#include "rigid_numbers_loops.h"

namespace mdio::rigid {
const Steps PLAIN = {{first_contexts, second_contexts, third_contexts}, finish, to_numbers, set_contexts, find_models};

const Steps& steps() { return has_avx512() ? AVX512 : has_avx2() ? AVX2 : PLAIN; }
}  // namespace mdio::rigid

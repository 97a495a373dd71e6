// From symbols to vectors, on any processor.
#define MDIO_LANES_TARGET
#include "rigid_part_loops.h"

namespace mdio::rigid {
const Steps PLAIN = {{first_contexts, second_contexts, third_contexts}, finish};

const Steps& steps() { return has_avx512() ? AVX512 : has_avx2() ? AVX2 : PLAIN; }
}  // namespace mdio::rigid

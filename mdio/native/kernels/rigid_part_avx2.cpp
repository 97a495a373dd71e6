// From symbols to vectors with AVX2.
#include "rigid.h"
MDIO_FILE_TARGET("avx2")
#define MDIO_LANES_TARGET MDIO_TARGET("avx2")
#include "rigid_part_loops.h"

namespace mdio::rigid {
const Steps AVX2 = {{first_contexts, second_contexts, third_contexts}, finish};
}  // namespace mdio::rigid

// From symbols to vectors with AVX-512.
#include "rigid.h"
MDIO_FILE_TARGET(MDIO_AVX512)
#define MDIO_LANES_TARGET MDIO_TARGET(MDIO_AVX512)
#define MDIO_LANES 16
#define MDIO_LANES_NAME sixteen
#include "rigid_part_loops.h"

namespace mdio::rigid {
const Steps AVX512 = {{first_contexts, second_contexts, third_contexts}, finish};
}  // namespace mdio::rigid

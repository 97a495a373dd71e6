// From symbols to vectors and back with AVX2.
#include "rigid_encode.h"
#include "rigid_models.h"
MDIO_FILE_TARGET("avx2")
#define MDIO_LANES_TARGET MDIO_TARGET("avx2")
#define MDIO_LANES_AVX2
#include "rigid_models_loops.h"
#include "rigid_vectors_loops.h"
#include "rigid_numbers_loops.h"

namespace mdio::rigid {
const Steps AVX2 = {{first_contexts, second_contexts, third_contexts}, finish, to_numbers, set_contexts, find_models};
}  // namespace mdio::rigid
MDIO_FILE_TARGET_END

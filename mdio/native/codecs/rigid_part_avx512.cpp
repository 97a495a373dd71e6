// From symbols to vectors and back with AVX-512.
#include "rigid_encode.h"
#include "rigid_models.h"

// Vectors that are uninitialised on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

MDIO_FILE_TARGET(MDIO_AVX512)
#define MDIO_LANES_TARGET MDIO_TARGET(MDIO_AVX512)
#define MDIO_LANES 16
#define MDIO_LANES_NAME sixteen
#include "rigid_models_loops.h"
#include "rigid_vectors_loops.h"
#include "rigid_numbers_loops.h"

namespace mdio::rigid {
const Steps AVX512 = {{first_contexts, second_contexts, third_contexts}, finish, to_numbers, set_contexts, find_models};
}  // namespace mdio::rigid
MDIO_FILE_TARGET_END

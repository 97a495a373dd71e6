// From symbols to vectors and back with AVX2.
#include "rigid_encode.h"
#include "rigid_learn.h"
MDIO_FILE_TARGET("avx2")
#define MDIO_LANES_TARGET MDIO_TARGET("avx2")
#define MDIO_LANES_AVX2
#include "rigid_look_loops.h"
#include "rigid_part_loops.h"
#include "rigid_tell_loops.h"

namespace mdio::rigid {
const Steps AVX2 = {{first_contexts, second_contexts, third_contexts}, finish, tell, symbols_of, contexts_of, look};
}  // namespace mdio::rigid
MDIO_FILE_TARGET_END

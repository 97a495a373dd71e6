// From symbols to vectors and back with AVX-512.
#include "rigid_encode.h"
#include "rigid_learn.h"
MDIO_FILE_TARGET(MDIO_AVX512)
#define MDIO_LANES_TARGET MDIO_TARGET(MDIO_AVX512)
#define MDIO_LANES 16
#define MDIO_LANES_NAME sixteen
#include "rigid_look_loops.h"
#include "rigid_part_loops.h"
#include "rigid_tell_loops.h"

namespace mdio::rigid {
const Steps AVX512 = {{first_contexts, second_contexts, third_contexts}, finish, tell, symbols_of, contexts_of, look};
}  // namespace mdio::rigid
MDIO_FILE_TARGET_END

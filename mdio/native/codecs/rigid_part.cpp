// From symbols to vectors and back, on any processor.
#define MDIO_LANES_TARGET
#define MDIO_LANES 4
#define MDIO_LANES_NAME four
#include "rigid_look_loops.h"
#include "rigid_part_loops.h"
#include "rigid_tell_loops.h"

namespace mdio::rigid {
const Steps PLAIN = {{first_contexts, second_contexts, third_contexts}, finish, tell, symbols_of, contexts_of, look};

const Steps& steps() { return has_avx512() ? AVX512 : has_avx2() ? AVX2 : PLAIN; }
}  // namespace mdio::rigid

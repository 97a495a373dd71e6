// One signed integer as an unsigned one, small where the signed one is small whatever its sign: 0,
// -1, 1, -2, ... become 0, 1, 2, 3, ...; and how many bits it needs.
#pragma once

#include <cstdint>

#include "cpu.h"

namespace mdio {

MDIO_INLINE uint32_t folded(int32_t x) { return (uint32_t(x) << 1) ^ uint32_t(x >> 31); }

MDIO_INLINE uint32_t unfolded(uint32_t u) { return (u >> 1) ^ (0u - (u & 1)); }

MDIO_INLINE uint32_t bits(uint32_t u) { return u ? 32 - uint32_t(__builtin_clz(u)) : 0; }

}  // namespace mdio

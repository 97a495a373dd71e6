// The two ways from coordinates to integers and back.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu.h"

namespace mdio {

struct Step {
    double step;
    MDIO_INLINE float decode(int32_t q) const { return float(double(q) * step); }
    MDIO_INLINE double guess(float x) const { return double(x) / step; }
};

// XTC keeps rint(nm * precision); xdrfile multiplies by a float32 reciprocal, MDAnalysis by 10.
struct Xtc {
    float inverse;
    MDIO_INLINE float decode(int32_t q) const { return float(q) * inverse * 10.0f; }
    MDIO_INLINE double guess(float x) const { return double(x) / (10 * double(inverse)); }
};

// A row of integers as floats, which need no alignment.
template <class Code>
MDIO_INLINE void decode_row(const uint32_t* q, int64_t n, const Code& code, char* to) {
    for (int64_t i = 0; i < n; ++i) {
        const float x = code.decode(int32_t(q[i]));
        std::memcpy(to + 4 * i, &x, 4);
    }
}

inline Xtc xtc(float precision) { return {1.0f / precision}; }

}  // namespace mdio

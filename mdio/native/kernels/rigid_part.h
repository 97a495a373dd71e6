// Some atoms of a class in one frame, as the reader has them.
#pragma once

#include "rigid_math.h"

namespace mdio::rigid {

// One class of one frame: its symbols and raw bits, and the vectors they become. Atoms are taken
// in eights; what is behind the last is some number.
struct Part {
    Kind kind;
    int64_t n;
    int raw_bits[STREAMS];
    float other;
    const int32_t* symbols[STREAMS];
    const int32_t* raw[STREAMS];
    int32_t *x, *y, *z;
    const int32_t* before[3];  // of the frame before
    const int32_t *all[3], *seconds;
    const uint8_t* in_row;
    const float* squares;

    MDIO_INLINE Ints symbol(int stream, int64_t i) const { return load(symbols[stream] + i); }
    MDIO_INLINE Ints get(int stream, int64_t i) const {
        return number(symbol(stream, i), load(raw[stream] + i), raw_bits[stream]);
    }
    MDIO_INLINE Vector second(int64_t i) const { return seconds_at(all, seconds + i, in_row[i / 8]); }
    MDIO_INLINE Plane plane_at(int64_t i) const {
        return plane(axis_of(symbol(0, i) >> 1), second(i), load(squares + i), other);
    }
    MDIO_INLINE Vector vector(int64_t i) const { return {load(x + i), load(y + i), load(z + i)}; }
    MDIO_INLINE Vector earlier(int64_t i) const {
        return {load(before[0] + i), load(before[1] + i), load(before[2] + i)};
    }
    MDIO_INLINE void put(int64_t i, const Vector& v) const {
        store(v.x, x + i);
        store(v.y, y + i);
        store(v.z, z + i);
    }
};

// What the symbols of a stream go by, one stream after the other; what is found on the way is left
// where the vectors will be. Last the vectors.
void first_contexts(const Part& part, int32_t* to);
void second_contexts(const Part& part, int32_t* to);
void third_contexts(const Part& part, int32_t* to);
bool finish(const Part& part);  // whether there may be escaped ones

}  // namespace mdio::rigid

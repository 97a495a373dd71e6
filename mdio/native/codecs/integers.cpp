// Coordinates as integers, differenced along the frames, and back.
//
// The arrays are worked through in runs of atoms, all frames of one run before the next: the sums
// of a run stay in the first-level cache, and each frame's part is long enough to stream.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "codes.h"
#include "integers.h"

namespace mdio {
namespace {

constexpr int64_t RUN = 4095;            // numbers, a whole number of atoms
constexpr double LIMIT = 1073741824.0;  // 2**30: differences of smaller integers fit in int32

constexpr int32_t SHIFTS[] = {-1, 1, -2, 2};

// Integers of one run of numbers, and whether all are in range.
template <class Code>
MDIO_INLINE bool integers_of(const Code& code, const char* from, int64_t n, int32_t* q) {
    int32_t bad = 0;
    for (int64_t i = 0; i < n; ++i) {
        float x;
        std::memcpy(&x, from + 4 * i, 4);
        const double exact = std::rint(code.guess(x));
        const bool fits = std::fabs(exact) < LIMIT;  // false for NaN
        bad |= !fits;
        q[i] = int32_t(fits ? exact : 0.0);
    }
    return !bad;
}

MDIO_INLINE bool same_bits(float one, const char* other) {
    return std::memcmp(&one, other, 4) == 0;
}

// Whether every integer decodes to its number, after a look at those beside it: the two roundings
// in float32 may have moved a large number to that of a neighbour.
MDIO_INLINE bool settle(const Xtc& code, const char* from, int64_t n, int32_t* q) {
    uint32_t missed = 0;
    for (int64_t i = 0; i < n; ++i) {
        const float decoded = code.decode(q[i]);
        uint32_t one, other;
        std::memcpy(&one, &decoded, 4);
        std::memcpy(&other, from + 4 * i, 4);
        missed |= one ^ other;
    }
    if (!missed) return true;
    for (int64_t i = 0; i < n; ++i) {
        if (same_bits(code.decode(q[i]), from + 4 * i)) continue;
        const int32_t* shift = std::find_if(SHIFTS, SHIFTS + 4, [&](int32_t by) {
            return same_bits(code.decode(q[i] + by), from + 4 * i);
        });
        if (shift == SHIFTS + 4) return false;
        q[i] += *shift;
        if (std::abs(q[i]) >= int32_t(LIMIT)) return false;
    }
    return true;
}

MDIO_INLINE bool settle(const Step&, const char*, int64_t, int32_t*) { return true; }

// Whether all are the integers found in float32: small ones, each the only one that decodes to its number.
MDIO_INLINE bool quick(const Xtc& code, const char* from, int64_t n, int32_t* q) {
    constexpr float WHOLE = 3 << 22;  // float32 has no fractions there: the last bits are the integer
    constexpr int32_t WHOLE_BITS = 0x4B400000, SMALL = 1 << 20;
    const float scale = float(1.0 / (10 * double(code.inverse)));
    uint32_t missed = 0;
    for (int64_t i = 0; i < n; ++i) {
        float x;
        std::memcpy(&x, from + 4 * i, 4);
        const float shifted = x * scale + WHOLE;
        uint32_t bits, one, other;
        std::memcpy(&bits, &shifted, 4);
        q[i] = int32_t(bits - uint32_t(WHOLE_BITS));
        const float decoded = code.decode(q[i]);
        std::memcpy(&one, &decoded, 4);
        std::memcpy(&other, &x, 4);
        missed |= (one ^ other) | (bits - uint32_t(WHOLE_BITS - SMALL)) / (2 * SMALL);
    }
    return !missed;
}

MDIO_INLINE bool quick(const Step&, const char*, int64_t, int32_t*) { return false; }

template <class Code>
MDIO_INLINE bool integers_of_run(const Code& code, const char* from, int64_t n, int32_t* q) {
    return quick(code, from, n, q) || (integers_of(code, from, n, q) && settle(code, from, n, q));
}

template <class Code>
MDIO_INLINE bool quantise(const Frames& positions, const Code& code, int32_t* deltas) {
    const int64_t width = 3 * positions.n_atoms;
    int32_t before[RUN], now[RUN];
    for (int64_t start = 0; start < width; start += RUN) {
        const int64_t n = std::min(RUN, width - start);
        std::fill(before, before + n, 0);
        for (int64_t f = 0; f < positions.n_frames; ++f) {
            const char* from = positions.data + f * positions.stride + 4 * start;
            if (!integers_of_run(code, from, n, now)) return false;
            int32_t* to = deltas + f * width + start;
            for (int64_t i = 0; i < n; ++i) {
                to[i] = now[i] - before[i];
                before[i] = now[i];
            }
        }
    }
    return true;
}

template <class Code>
MDIO_INLINE bool quantise_as_it_is(const char* from, int64_t n, const Code& code, int32_t* to) {
    for (int64_t start = 0; start < n; start += RUN)
        if (!integers_of_run(code, from + 4 * start, std::min(RUN, n - start), to + start)) return false;
    return true;
}

MDIO_INLINE uint32_t integer(const char* from, int64_t i) {
    uint32_t q;
    std::memcpy(&q, from + 4 * i, 4);
    return q;
}

template <class Code>
MDIO_INLINE void dequantise_plain(const char* deltas, int64_t n_atoms, const Code& code,
                            const Output& out, const int64_t* atoms, int64_t first, int64_t last) {
    const int64_t width = 3 * n_atoms;
    uint32_t sums[RUN];  // unsigned: they may wrap around
    for (int64_t start = 0; start < 3 * out.n_atoms; start += RUN) {
        const int64_t n = std::min(RUN, 3 * out.n_atoms - start);
        std::fill(sums, sums + n, 0);
        for (int64_t f = 0; f < last; ++f) {
            const char* from = deltas + 4 * f * width;
            if (atoms)
                for (int64_t i = 0; i < n; i += 3)
                    for (int64_t axis = 0; axis < 3; ++axis)
                        sums[i + axis] += integer(from, 3 * atoms[(start + i) / 3] + axis);
            else
                for (int64_t i = 0; i < n; ++i) sums[i] += integer(from, start + i);
            if (f < first) continue;
            char* to = out.data + (f - first) * out.stride + 4 * start;
            for (int64_t i = 0; i < n; ++i) {
                const float x = code.decode(int32_t(sums[i]));
                std::memcpy(to + 4 * i, &x, 4);
            }
        }
    }
}

template <class Code>
MDIO_TARGET("avx2,fma")
bool quantise_avx2(const Frames& positions, const Code& code, int32_t* deltas) {
    return quantise(positions, code, deltas);
}

template <class Code>
MDIO_TARGET("avx2,fma")
bool quantise_as_it_is_avx2(const char* from, int64_t n, const Code& code, int32_t* to) {
    return quantise_as_it_is(from, n, code, to);
}

template <class Code>
MDIO_TARGET("avx2,fma")
void dequantise_avx2(const char* deltas, int64_t n_atoms, const Code& code, const Output& out,
                     const int64_t* atoms, int64_t first, int64_t last) {
    dequantise_plain(deltas, n_atoms, code, out, atoms, first, last);
}

}  // namespace

bool quantise_row(const char* from, int64_t n, const Coding& coding, int32_t* to) {
    const Step step{coding.number};
    if (!coding.is_xtc)
        return (has_avx2() ? quantise_as_it_is_avx2<Step> : quantise_as_it_is<Step>)(from, n, step, to);
    const Xtc code = xtc(float(coding.number));
    return (has_avx2() ? quantise_as_it_is_avx2<Xtc> : quantise_as_it_is<Xtc>)(from, n, code, to);
}

void dequantise(const char* deltas, int64_t n_atoms, const Coding& coding, const Output& out,
                const int64_t* atoms, int64_t first, int64_t last) {
    if (coding.is_xtc)
        (has_avx2() ? dequantise_avx2<Xtc> : dequantise_plain<Xtc>)(deltas, n_atoms, xtc(float(coding.number)), out,
                                                                    atoms, first, last);
    else
        (has_avx2() ? dequantise_avx2<Step> : dequantise_plain<Step>)(deltas, n_atoms, {coding.number}, out, atoms,
                                                                      first, last);
}

}  // namespace mdio

mdio_status mdio_quantise(const mdio_frames* positions, mdio_coding coding, int32_t* deltas) {
    using namespace mdio;
    bool is_done;
    if (coding.is_xtc)
        is_done = (has_avx2() ? quantise_avx2<Xtc> : quantise<Xtc>)(*positions, xtc(float(coding.number)), deltas);
    else
        is_done = (has_avx2() ? quantise_avx2<Step> : quantise<Step>)(*positions, {coding.number}, deltas);
    return is_done ? MDIO_OK : MDIO_NO_INTEGERS;
}

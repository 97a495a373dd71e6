// Arrays of integers, folded and back.
#include "fold.h"

#include <cstring>

#include "integers.h"

namespace mdio {
namespace {

MDIO_INLINE uint32_t bits_of(const int32_t* from, int64_t n) {
    uint32_t bits = 0;
    for (int64_t i = 0; i < n; ++i) bits |= folded(from[i]);
    return bits;
}

template <class Narrow>
MDIO_INLINE void fold_to(const int32_t* from, int64_t n, Narrow* to) {
    for (int64_t i = 0; i < n; ++i) to[i] = Narrow(folded(from[i]));
}

template <class Narrow>
MDIO_INLINE void unfold_from(const char* from, int64_t n, int32_t* to) {
    for (int64_t i = 0; i < n; ++i) {
        Narrow u;
        std::memcpy(&u, from + i * int64_t(sizeof u), sizeof u);
        to[i] = int32_t(unfolded(u));
    }
}

MDIO_TARGET("avx2") uint32_t bits_avx2(const int32_t* from, int64_t n) { return bits_of(from, n); }

template <class Narrow>
MDIO_TARGET("avx2")
void fold_avx2(const int32_t* from, int64_t n, Narrow* to) {
    fold_to(from, n, to);
}

template <class Narrow>
MDIO_TARGET("avx2")
void unfold_avx2(const char* from, int64_t n, int32_t* to) {
    unfold_from<Narrow>(from, n, to);
}

}  // namespace

bool folds_to_16_bits(const int32_t* from, int64_t n) {
    return ((has_avx2() ? bits_avx2 : bits_of)(from, n) >> 16) == 0;
}

void fold(const int32_t* from, int64_t n, uint16_t* to) {
    (has_avx2() ? fold_avx2<uint16_t> : fold_to<uint16_t>)(from, n, to);
}

void fold(const int32_t* from, int64_t n, uint32_t* to) {
    (has_avx2() ? fold_avx2<uint32_t> : fold_to<uint32_t>)(from, n, to);
}

void unfold(const char* from, bool wide, int64_t n, int32_t* to) {
    if (wide)
        (has_avx2() ? unfold_avx2<uint32_t> : unfold_from<uint32_t>)(from, n, to);
    else
        (has_avx2() ? unfold_avx2<uint16_t> : unfold_from<uint16_t>)(from, n, to);
}

}  // namespace mdio

// Moving coordinates: interleaving planes, swapping bytes, picking atoms.
#include <cstring>

#include "cpu.h"
#include "kernels.h"

namespace mdio {
namespace {

constexpr int64_t ATOM = 12;  // bytes

template <bool SWAP>
MDIO_INLINE uint32_t load(const char* data) {
    uint32_t bits;
    std::memcpy(&bits, data, 4);
    return SWAP ? __builtin_bswap32(bits) : bits;
}

template <bool SWAP, bool SCALE>
MDIO_INLINE void copy_one(const char* from, char* to, float scale) {
    uint32_t bits = load<SWAP>(from);
    if (SCALE) {
        float value;
        std::memcpy(&value, &bits, 4);
        value *= scale;
        std::memcpy(&bits, &value, 4);
    }
    std::memcpy(to, &bits, 4);
}

template <bool SWAP, bool SCALE>
MDIO_INLINE void copy_frame(const char* from, char* to, int64_t n, const int64_t* atoms,
                            float scale) {
    if (atoms) {
        for (int64_t i = 0; i < n; ++i)
            for (int64_t axis = 0; axis < 3; ++axis)
                copy_one<SWAP, SCALE>(from + ATOM * atoms[i] + 4 * axis, to + ATOM * i + 4 * axis,
                                      scale);
    } else if (SWAP || SCALE) {
        for (int64_t i = 0; i < 3 * n; ++i) copy_one<SWAP, SCALE>(from + 4 * i, to + 4 * i, scale);
    } else {
        std::memcpy(to, from, size_t(ATOM * n));
    }
}

template <bool SWAP, bool SCALE>
MDIO_INLINE void copy_frames(const Frames& src, const Output& out, const int64_t* atoms,
                             float scale) {
    for (int64_t f = 0; f < src.n_frames; ++f)
        copy_frame<SWAP, SCALE>(src.data + f * src.stride, out.data + f * out.stride, out.n_atoms,
                                atoms, scale);
}

MDIO_INLINE void copy_any(const Frames& src, const Output& out, const int64_t* atoms, bool swap,
                          float scale) {
    if (swap)
        scale == 1 ? copy_frames<true, false>(src, out, atoms, scale)
                   : copy_frames<true, true>(src, out, atoms, scale);
    else
        scale == 1 ? copy_frames<false, false>(src, out, atoms, scale)
                   : copy_frames<false, true>(src, out, atoms, scale);
}

template <bool SWAP>
MDIO_INLINE void interleave_from(int64_t start, const char* x, int64_t axis_stride, char* to,
                                 int64_t n, const int64_t* atoms) {
    for (int64_t i = start; i < n; ++i) {
        const char* from = x + 4 * (atoms ? atoms[i] : i);
        for (int64_t axis = 0; axis < 3; ++axis) {
            const uint32_t bits = load<SWAP>(from + axis * axis_stride);
            std::memcpy(to + ATOM * i + 4 * axis, &bits, 4);
        }
    }
}

template <bool SWAP>
void interleave_plain(const char* x, int64_t axis_stride, char* to, int64_t n,
                      const int64_t* atoms) {
    interleave_from<SWAP>(0, x, axis_stride, to, n, atoms);
}

MDIO_INLINE void split_from(int64_t start, const char* from, int64_t n, char* to,
                            int64_t axis_stride) {
    for (int64_t i = start; i < n; ++i)
        for (int64_t axis = 0; axis < 3; ++axis)
            std::memcpy(to + 4 * i + axis * axis_stride, from + ATOM * i + 4 * axis, 4);
}

void split_plain(const char* from, int64_t n, char* to, int64_t axis_stride) {
    split_from(0, from, n, to, axis_stride);
}

#if MDIO_X86

template <bool SWAP>
MDIO_TARGET("avx2,fma")
inline __m128 load_four(const char* data) {
    __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
    if (SWAP)
        bits = _mm_shuffle_epi8(
            bits, _mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12));
    return _mm_castsi128_ps(bits);
}

template <bool SWAP>
MDIO_TARGET("avx2,fma")
void interleave_avx2(const char* data, int64_t axis_stride, char* to, int64_t n,
                     const int64_t* atoms) {
    int64_t i = 0;
    if (!atoms)
        for (; i + 4 <= n; i += 4) {
            const __m128 x = load_four<SWAP>(data + 4 * i);
            const __m128 y = load_four<SWAP>(data + 4 * i + axis_stride);
            const __m128 z = load_four<SWAP>(data + 4 * i + 2 * axis_stride);
            const __m128 xy01 = _mm_unpacklo_ps(x, y), xy23 = _mm_unpackhi_ps(x, y);
            const __m128 z0x1 = _mm_shuffle_ps(z, xy01, _MM_SHUFFLE(2, 2, 0, 0));
            const __m128 y1z1 = _mm_shuffle_ps(xy01, z, _MM_SHUFFLE(1, 1, 3, 3));
            const __m128 z2x3 = _mm_shuffle_ps(z, xy23, _MM_SHUFFLE(2, 2, 2, 2));
            const __m128 y3z3 = _mm_shuffle_ps(xy23, z, _MM_SHUFFLE(3, 3, 3, 3));
            float* four = reinterpret_cast<float*>(to + ATOM * i);
            _mm_storeu_ps(four, _mm_shuffle_ps(xy01, z0x1, _MM_SHUFFLE(2, 0, 1, 0)));
            _mm_storeu_ps(four + 4, _mm_shuffle_ps(y1z1, xy23, _MM_SHUFFLE(1, 0, 2, 0)));
            _mm_storeu_ps(four + 8, _mm_shuffle_ps(z2x3, y3z3, _MM_SHUFFLE(2, 0, 2, 0)));
        }
    interleave_from<SWAP>(i, data, axis_stride, to, n, atoms);
}

// Four atoms, three vectors of them, as four of each axis.
MDIO_TARGET("avx2,fma")
void split_avx2(const char* from, int64_t n, char* to, int64_t axis_stride) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float* four = reinterpret_cast<const float*>(from + ATOM * i);
        const __m128 a = _mm_loadu_ps(four);      // x0 y0 z0 x1
        const __m128 b = _mm_loadu_ps(four + 4);  // y1 z1 x2 y2
        const __m128 c = _mm_loadu_ps(four + 8);  // z2 x3 y3 z3
        const __m128 x2y2x3y3 = _mm_shuffle_ps(b, c, _MM_SHUFFLE(2, 1, 3, 2));
        const __m128 y0z0y1z1 = _mm_shuffle_ps(a, b, _MM_SHUFFLE(1, 0, 2, 1));
        float* x = reinterpret_cast<float*>(to + 4 * i);
        float* y = reinterpret_cast<float*>(to + 4 * i + axis_stride);
        float* z = reinterpret_cast<float*>(to + 4 * i + 2 * axis_stride);
        _mm_storeu_ps(x, _mm_shuffle_ps(a, x2y2x3y3, _MM_SHUFFLE(2, 0, 3, 0)));
        _mm_storeu_ps(y, _mm_shuffle_ps(y0z0y1z1, x2y2x3y3, _MM_SHUFFLE(3, 1, 2, 0)));
        _mm_storeu_ps(z, _mm_shuffle_ps(y0z0y1z1, c, _MM_SHUFFLE(3, 0, 3, 1)));
    }
    split_from(i, from, n, to, axis_stride);
}

MDIO_TARGET("avx2,fma")
void copy_any_avx2(const Frames& src, const Output& out, const int64_t* atoms, bool swap,
                   float scale) {
    copy_any(src, out, atoms, swap, scale);
}

#else

template <bool SWAP>
void interleave_avx2(const char*, int64_t, char*, int64_t, const int64_t*) {}
void split_avx2(const char*, int64_t, char*, int64_t) {}
void copy_any_avx2(const Frames&, const Output&, const int64_t*, bool, float) {}

#endif

}  // namespace

void planar_to_xyz(const Frames& planar, int64_t axis_stride, const Output& out,
                   const int64_t* atoms, bool swap) {
    const auto interleave = has_avx2() ? (swap ? interleave_avx2<true> : interleave_avx2<false>)
                                       : (swap ? interleave_plain<true> : interleave_plain<false>);
    for (int64_t f = 0; f < planar.n_frames; ++f)
        interleave(planar.data + f * planar.stride, axis_stride, out.data + f * out.stride,
                   out.n_atoms, atoms);
}

void xyz_to_planar(const Frames& src, const Output& out, int64_t axis_stride) {
    const auto split = has_avx2() ? split_avx2 : split_plain;
    for (int64_t f = 0; f < src.n_frames; ++f)
        split(src.data + f * src.stride, src.n_atoms, out.data + f * out.stride, axis_stride);
}

void copy_atoms(const Frames& src, const Output& out, const int64_t* atoms, bool swap,
                float scale) {
    (has_avx2() ? copy_any_avx2 : copy_any)(src, out, atoms, swap, scale);
}

}  // namespace mdio

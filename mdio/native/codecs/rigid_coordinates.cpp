// From vectors to coordinates.
#include "rigid_coordinates.h"

#include <algorithm>
#include <cstring>

#include "codes.h"

namespace mdio::rigid {
namespace {

constexpr int64_t BEFORE = 256;  // rows that are kept: parents are nearer; behind them is that of the origin
constexpr int64_t ROW = 8;  // numbers with AVX2: x, y, z and another of no meaning of one frame, and of the other

using Row = uint32_t __attribute__((vector_size(16)));  // x, y, z and a zero
using IntRow = int32_t __attribute__((vector_size(16)));
using FloatRow = float __attribute__((vector_size(16)));
using DoubleRow = double __attribute__((vector_size(32)));

MDIO_INLINE FloatRow decoded(const Xtc& code, const Row& q) {
    return __builtin_convertvector(IntRow(q), FloatRow) * code.inverse * 10.0f;
}
MDIO_INLINE FloatRow decoded(const Step& code, const Row& q) {
    return __builtin_convertvector(__builtin_convertvector(IntRow(q), DoubleRow) * code.step, FloatRow);
}

#if MDIO_X86

MDIO_TARGET("avx2")
MDIO_INLINE __m256 decoded(const Xtc& code, __m256i q) {
    const auto x = _mm256_mul_ps(_mm256_cvtepi32_ps(q), _mm256_set1_ps(code.inverse));
    return _mm256_mul_ps(x, _mm256_set1_ps(10.0f));
}

MDIO_TARGET("avx2")
MDIO_INLINE __m256 decoded(const Step& code, __m256i q) {
    const auto step = _mm256_set1_pd(code.step);
    const auto one = _mm256_mul_pd(_mm256_cvtepi32_pd(_mm256_castsi256_si128(q)), step);
    const auto other = _mm256_mul_pd(_mm256_cvtepi32_pd(_mm256_extracti128_si256(q, 1)), step);
    return _mm256_set_m128(_mm256_cvtpd_ps(other), _mm256_cvtpd_ps(one));
}

MDIO_TARGET("avx2")
MDIO_INLINE __m256i four_of(const int32_t* one, const int32_t* other) {
    const auto low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(one));
    const auto high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(other));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

// Fills rows with `n` vectors from `slot` on, four at a time; up to three rows more are written.
MDIO_TARGET("avx2")
MDIO_INLINE void rows_of(const Vectors* const frames[FRAMES_AT_ONCE], int64_t slot, int64_t n, int32_t* to) {
    const int32_t *one[3], *other[3];
    for (size_t axis = 0; axis < 3; ++axis) {
        one[axis] = frames[0]->axes[axis].data() + slot;
        other[axis] = frames[1]->axes[axis].data() + slot;
    }
    for (int64_t i = 0; i < n; i += 4) {
        const auto x = four_of(one[0] + i, other[0] + i), y = four_of(one[1] + i, other[1] + i);
        const auto z = _mm256_castsi256_ps(four_of(one[2] + i, other[2] + i));
        const auto xy = _mm256_castsi256_ps(_mm256_unpacklo_epi32(x, y));
        const auto last_xy = _mm256_castsi256_ps(_mm256_unpackhi_epi32(x, y));
        auto* row = reinterpret_cast<float*>(to + ROW * i);
        _mm256_store_ps(row, _mm256_shuffle_ps(xy, z, 0x04));
        _mm256_store_ps(row + ROW, _mm256_shuffle_ps(xy, z, 0x5E));
        _mm256_store_ps(row + 2 * ROW, _mm256_shuffle_ps(last_xy, z, 0xA4));
        _mm256_store_ps(row + 3 * ROW, _mm256_shuffle_ps(last_xy, z, 0xFE));
    }
}

// Stores four coordinates of each frame, from number `at` on.
template <class Code>
MDIO_TARGET("avx2")
MDIO_INLINE void put(const Code& code, __m256 q, char* const to[FRAMES_AT_ONCE], int64_t at) {
    const auto floats = decoded(code, _mm256_castps_si256(q));
    _mm_storeu_ps(reinterpret_cast<float*>(to[0] + 4 * at), _mm256_castps256_ps128(floats));
    _mm_storeu_ps(reinterpret_cast<float*>(to[1] + 4 * at), _mm256_extractf128_ps(floats, 1));
}

#endif

}  // namespace

CoordinateWriter::CoordinateWriter(const Chunk& chunk, int64_t n_atoms) : chunk_(chunk), n_atoms_(n_atoms) {
    if (!has_avx2()) return;
    const size_t n_classes = chunk.classes.size();
    constexpr int64_t row_nbytes = 4 * ROW;
    static_assert((ROW_RUN + 4 * MAX_CLASSES) * row_nbytes <= UINT16_MAX && BEFORE * row_nbytes <= UINT16_MAX);
    sources_.resize(size_t(n_atoms));
    vectors_.resize(size_t(ROW * (ROW_RUN + 4 * int64_t(n_classes) + 1)));
    std::vector<int32_t> shifts(n_classes);  // from slots to places
    const int32_t* slots = chunk.run_slots.data();
    for (int64_t begin = 0; begin < n_atoms; begin += ROW_RUN, slots += n_classes) {
        int32_t place = 0;
        for (size_t c = 0; c < n_classes; ++c) {
            shifts[c] = place - slots[c];
            place += (slots[c + n_classes] - slots[c] + 3) / 4 * 4;
        }
        for (int64_t i = begin; i < std::min(begin + ROW_RUN, n_atoms); ++i) {
            const uint8_t offset = chunk.atoms.parent_offsets[size_t(i)];
            const int32_t of_vector = chunk.slots[size_t(i)] + shifts[chunk.atoms.classes[size_t(i)]];
            const int64_t of_parent = offset ? (i - offset) & (BEFORE - 1) : BEFORE;
            sources_[size_t(i)] = {uint16_t(of_vector * row_nbytes), uint16_t(of_parent * row_nbytes)};
        }
    }
}

#if MDIO_X86
template <class Code>
MDIO_TARGET("avx2")
void CoordinateWriter::write_avx2(const Vectors* const frames[FRAMES_AT_ONCE], const Code& code_given,
                                  char* const to[FRAMES_AT_ONCE]) {
    const Code code = code_given;
    const size_t n_classes = chunk_.classes.size();
    int32_t* numbers = vectors_.data();
    while (reinterpret_cast<uintptr_t>(numbers) % 32) ++numbers;
    const auto* vectors = reinterpret_cast<const char*>(numbers);
    __m256i rows[BEFORE + 1];
    rows[BEFORE] = _mm256_setzero_si256();
    // Adds the vector of an atom to the row of its parent; in `row`, and what is returned, are both frames.
    const auto add_up = [&](const Source& source, __m256i& row) __attribute__((always_inline, target("avx2"))) {
        const auto vector = _mm256_load_si256(reinterpret_cast<const __m256i*>(vectors + source.vector));
        const char* parent = reinterpret_cast<const char*>(rows) + source.parent;
        row = _mm256_add_epi32(vector, _mm256_load_si256(reinterpret_cast<const __m256i*>(parent)));
        return _mm256_castsi256_ps(row);
    };
    char* const out[FRAMES_AT_ONCE] = {to[0], to[1] ? to[1] : to[0]};
    const int32_t* slots = chunk_.run_slots.data();
    for (int64_t begin = 0; begin < n_atoms_; begin += ROW_RUN, slots += n_classes) {
        const int64_t n = std::min(ROW_RUN, n_atoms_ - begin);
        int64_t place = 0;
        for (size_t c = 0; c < n_classes; ++c) {
            const int64_t count = slots[c + n_classes] - slots[c];
            rows_of(frames, slots[c], count, numbers + ROW * place);
            place += (count + 3) / 4 * 4;
        }
        const Source* sources = sources_.data() + begin;
        const int64_t n_fours = n / 4 * 4;
        for (int64_t i = 0; i < n_fours; i += 4) {
            const int64_t at = begin + i;
            for (char* frame : out) __builtin_prefetch(frame + 12 * at + 1024, 1);
            __m256i* own = rows + (at & (BEFORE - 1));
            __m256 x[4];
            for (int64_t k = 0; k < 4; ++k) x[k] = add_up(sources[i + k], own[k]);
            // The numbers between the atoms of a frame are left out.
            put(code, _mm256_blend_ps(x[0], _mm256_permute_ps(x[1], 0x00), 0x88), out, 3 * at);
            put(code, _mm256_shuffle_ps(x[1], x[2], 0x49), out, 3 * at + 4);
            const auto y_z = _mm256_permute_ps(x[3], 0x90);
            put(code, _mm256_blend_ps(y_z, _mm256_permute_ps(x[2], 0x02), 0x11), out, 3 * at + 8);
        }
        for (int64_t i = n_fours; i < n; ++i) {
            const auto x = add_up(sources[i], rows[(begin + i) & (BEFORE - 1)]);
            float both[ROW];
            _mm256_storeu_ps(both, decoded(code, _mm256_castps_si256(x)));
            for (int k = 0; k < FRAMES_AT_ONCE; ++k) std::memcpy(out[k] + 12 * (begin + i), both + 4 * k, 12);
        }
    }
}
#endif

template <class Code>
void CoordinateWriter::write_plain(const Vectors& vectors, const Code& code_given, char* to) {
    const Code code = code_given;
    const int64_t n_but_one = n_atoms_ - 1;
    const int32_t *x = vectors.axes[0].data(), *y = vectors.axes[1].data(), *z = vectors.axes[2].data();
    const int32_t* slots = chunk_.slots.data();
    const uint8_t* parent_offsets = chunk_.atoms.parent_offsets.data();
    Row rows[BEFORE + 1] = {};
    const auto floats_of = [&](int64_t i) __attribute__((always_inline)) {
        const int64_t slot = slots[i], offset = parent_offsets[i];
        const Row vector = {uint32_t(x[slot]), uint32_t(y[slot]), uint32_t(z[slot]), 0};
        const Row row = vector + rows[offset ? (i - offset) & (BEFORE - 1) : BEFORE];
        rows[i & (BEFORE - 1)] = row;
        return decoded(code, row);
    };
    for (int64_t i = 0; i < n_but_one; ++i) {
        const FloatRow floats = floats_of(i);
        std::memcpy(to + 12 * i, &floats, sizeof floats);  // four bytes too many
    }
    if (n_but_one < 0) return;
    const FloatRow last = floats_of(n_but_one);
    std::memcpy(to + 12 * n_but_one, &last, 12);
}

template <class Code>
void CoordinateWriter::write(const Vectors* const frames[FRAMES_AT_ONCE], const Code& code,
                             char* const to[FRAMES_AT_ONCE]) {
#if MDIO_X86
    if (!sources_.empty()) return write_avx2(frames, code, to);
#endif
    for (int k = 0; k < FRAMES_AT_ONCE; ++k)
        if (to[k]) write_plain(*frames[k], code, to[k]);
}

template void CoordinateWriter::write(const Vectors* const[], const Step&, char* const[]);
template void CoordinateWriter::write(const Vectors* const[], const Xtc&, char* const[]);

}  // namespace mdio::rigid

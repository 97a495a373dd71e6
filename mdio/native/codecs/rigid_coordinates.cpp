// From vectors to coordinates.
#include "rigid_coordinates.h"

#include <algorithm>
#include <cstring>

#include "codes.h"

namespace mdio::rigid {
namespace {

constexpr int64_t RUN = 512;  // atoms, whose rows stay in the first-level cache
constexpr int64_t ROW = 8;  // numbers: x, y, z and a zero of one frame, and of the other

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
    const auto none = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i += 4) {
        const auto x = four_of(one[0] + i, other[0] + i), y = four_of(one[1] + i, other[1] + i),
                   z = four_of(one[2] + i, other[2] + i);
        const auto xy = _mm256_unpacklo_epi32(x, y), last_xy = _mm256_unpackhi_epi32(x, y);
        const auto zs = _mm256_unpacklo_epi32(z, none), last_zs = _mm256_unpackhi_epi32(z, none);
        auto* row = reinterpret_cast<__m256i*>(to + ROW * i);
        _mm256_storeu_si256(row, _mm256_unpacklo_epi64(xy, zs));
        _mm256_storeu_si256(row + 1, _mm256_unpackhi_epi64(xy, zs));
        _mm256_storeu_si256(row + 2, _mm256_unpacklo_epi64(last_xy, last_zs));
        _mm256_storeu_si256(row + 3, _mm256_unpackhi_epi64(last_xy, last_zs));
    }
}

#endif

}  // namespace

CoordinateWriter::CoordinateWriter(const Chunk& chunk, int64_t n_atoms) : chunk_(chunk), n_atoms_(n_atoms) {
    const size_t n_classes = chunk.classes.size();
    if (!has_avx2()) {
        rows_.resize(size_t(3 * n_atoms + 3));
        return;
    }
    uint8_t max_offset = 0;
    for (size_t i = 0; i < size_t(n_atoms); ++i) max_offset = std::max(max_offset, chunk.atoms.parent_offsets[i]);
    max_offset_ = max_offset;
    places_.resize(size_t(n_atoms));
    counts_.resize(size_t((n_atoms + RUN - 1) / RUN) * n_classes);
    vectors_.resize(size_t(ROW * (RUN + 4 * int64_t(n_classes) + 1)));
    uint16_t* counts = counts_.data();
    std::vector<int32_t> shifts(n_classes), next;  // from slots to places; slots
    for (const Class& c : chunk.classes) next.push_back(int32_t(c.begin));
    for (int64_t begin = 0; begin < n_atoms; begin += RUN, counts += n_classes) {
        const auto first = size_t(begin), end = size_t(std::min(begin + RUN, n_atoms));
        for (size_t i = first; i < end; ++i) ++counts[chunk.atoms.classes[i]];
        int32_t place = 0;
        for (size_t c = 0; c < n_classes; ++c) {
            shifts[c] = place - next[c];
            next[c] += counts[c];
            place += (counts[c] + 3) / 4 * 4;
        }
        for (size_t i = first; i < end; ++i)
            places_[i] = uint16_t(chunk.slots[i] + shifts[chunk.atoms.classes[i]]);
    }
}

#if MDIO_X86
template <class Code>
MDIO_TARGET("avx2")
void CoordinateWriter::write_avx2(const Vectors* const frames[FRAMES_AT_ONCE], const Code& code_given,
                                  char* const to[FRAMES_AT_ONCE]) {
    constexpr int64_t BEFORE = 256;  // rows before a run: the origin, and possible parents
    const Code code = code_given;
    const size_t n_classes = chunk_.classes.size();
    int32_t* vectors = vectors_.data();
    while (reinterpret_cast<uintptr_t>(vectors) % 32) ++vectors;
    alignas(32) int32_t rows[ROW * (BEFORE + RUN)];
    std::fill_n(rows, ROW, 0);  // no parent lies before the first atom
    char buffers[FRAMES_AT_ONCE][12 * RUN + 4];
    std::vector<int64_t> next;  // of each class: slots
    for (const Class& c : chunk_.classes) next.push_back(c.begin);
    const uint16_t* counts = counts_.data();
    for (int64_t begin = 0; begin < n_atoms_; begin += RUN, counts += n_classes) {
        const int64_t n = std::min(RUN, n_atoms_ - begin);
        int64_t place = 0;
        for (size_t c = 0; c < n_classes; ++c) {
            rows_of(frames, next[c], counts[c], vectors + ROW * place);
            next[c] += counts[c];
            place += (counts[c] + 3) / 4 * 4;
        }
        const uint16_t* places = places_.data() + begin;
        const uint8_t* parent_offsets = chunk_.atoms.parent_offsets.data() + begin;
        // Stores write four bytes too many, for which there is no room after the last atom.
        const bool is_last = begin + n == n_atoms_;
        char* out[FRAMES_AT_ONCE];
        for (int k = 0; k < FRAMES_AT_ONCE; ++k) out[k] = to[k] && !is_last ? to[k] + 12 * begin : buffers[k];
        for (int64_t i = 0; i < n; ++i) {
            const int64_t parent = parent_offsets[i] ? BEFORE + i - parent_offsets[i] : 0;
            auto* row = reinterpret_cast<__m256i*>(rows) + BEFORE + i;
            const auto vector = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(vectors) + places[i]);
            const auto x = _mm256_add_epi32(vector, reinterpret_cast<const __m256i*>(rows)[parent]);
            _mm256_store_si256(row, x);
            const auto floats = decoded(code, x);
            if (i % 4 == 0) __builtin_prefetch(out[0] + 12 * i + 1024, 1), __builtin_prefetch(out[1] + 12 * i + 1024, 1);
            _mm_storeu_ps(reinterpret_cast<float*>(out[0] + 12 * i), _mm256_castps256_ps128(floats));
            _mm_storeu_ps(reinterpret_cast<float*>(out[1] + 12 * i), _mm256_extractf128_ps(floats, 1));
        }
        for (int k = 0; is_last && k < FRAMES_AT_ONCE; ++k)
            if (to[k]) std::memcpy(to[k] + 12 * begin, buffers[k], size_t(12 * n));
        const int64_t begin_kept = BEFORE - max_offset_;
        if (!is_last)
            std::memcpy(rows + ROW * begin_kept, rows + ROW * (begin_kept + RUN), size_t(4 * ROW * max_offset_));
    }
}
#endif

template <class Code>
void CoordinateWriter::write_plain(const Vectors& vectors, const Code& code, char* to) {
    const int32_t *x = vectors.axes[0].data(), *y = vectors.axes[1].data(), *z = vectors.axes[2].data();
    uint32_t* row = rows_.data() + 3;
    for (int64_t i = 0; i < n_atoms_; ++i, row += 3) {
        const int64_t offset = chunk_.atoms.parent_offsets[size_t(i)];
        const uint32_t* parent = offset ? row - 3 * offset : rows_.data();
        const auto slot = size_t(chunk_.slots[size_t(i)]);
        row[0] = parent[0] + uint32_t(x[slot]);
        row[1] = parent[1] + uint32_t(y[slot]);
        row[2] = parent[2] + uint32_t(z[slot]);
    }
    decode_row(rows_.data() + 3, 3 * n_atoms_, code, to);
}

template <class Code>
void CoordinateWriter::write(const Vectors* const frames[FRAMES_AT_ONCE], const Code& code,
                             char* const to[FRAMES_AT_ONCE]) {
#if MDIO_X86
    if (!places_.empty()) return write_avx2(frames, code, to);
#endif
    for (int k = 0; k < FRAMES_AT_ONCE; ++k)
        if (to[k]) write_plain(*frames[k], code, to[k]);
}

template void CoordinateWriter::write(const Vectors* const[], const Step&, char* const[]);
template void CoordinateWriter::write(const Vectors* const[], const Xtc&, char* const[]);

}  // namespace mdio::rigid

// Vectors from rows of atoms, and counts of symbols.
#include "rigid_encode.h"

namespace mdio::rigid {

#if MDIO_X86
namespace {

MDIO_INLINE __m128i vector_at(const int32_t* row, const Place& place) {
    const auto at = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + place.atom));
    return _mm_sub_epi32(at, _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + place.parent)));
}

}  // namespace
#endif

std::vector<int32_t> groups_along_row(const std::vector<Place>& places, int64_t n_atoms) {
    const auto run_of = [&](size_t slot) { return size_t(places[slot].atom / (3 * ROW_RUN)); };
    std::vector<int32_t> begins(size_t(n_atoms / ROW_RUN + 2)), groups(places.size() / GROUP);
    for (size_t slot = 0; slot < places.size(); slot += GROUP) ++begins[run_of(slot) + 1];
    for (size_t run = 1; run < begins.size(); ++run) begins[run] += begins[run - 1];
    for (size_t slot = 0; slot < places.size(); slot += GROUP) groups[size_t(begins[run_of(slot)]++)] = int32_t(slot);
    return groups;
}

void load_vectors(const int32_t* row, const Place* places, const std::vector<int32_t>& groups, Vectors& to) {
    int32_t *x = to.axes[0].data(), *y = to.axes[1].data(), *z = to.axes[2].data();
#if MDIO_X86
    for (const int32_t group : groups)
        for (int64_t i = group; i < group + GROUP; i += 4) {
            const auto a = vector_at(row, places[i]), b = vector_at(row, places[i + 1]);
            const auto c = vector_at(row, places[i + 2]), d = vector_at(row, places[i + 3]);
            const auto ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
            const auto last = _mm_unpacklo_epi64(_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(x + i), _mm_unpacklo_epi64(ab, cd));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), _mm_unpackhi_epi64(ab, cd));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(z + i), last);
        }
#else
    int32_t* const axes[3] = {x, y, z};
    for (const int32_t group : groups)
        for (int64_t i = group; i < group + GROUP; ++i)
            for (int axis = 0; axis < 3; ++axis)
                axes[axis][i] = int32_t(uint32_t(row[places[i].atom + axis]) - uint32_t(row[places[i].parent + axis]));
#endif
}

void count(Kind kind, const uint16_t* const symbols[STREAMS], int64_t n, uint32_t* counts) {
    const uint16_t *a = symbols[0], *b = symbols[1], *c = symbols[2];
    const StreamTables* tables = STREAM_TABLES[kind];
    const size_t size = n_counts(kind) / 2;
    uint32_t* const second = counts + 256 * (kind < SPHERE ? 1 : tables[1].first);
    uint32_t* const third = counts + 256 * (kind < SPHERE ? 2 : tables[2].first);
    // Alternates between two sets of counts: increments of the same counter do not wait for each other.
    int64_t i = 0;
    for (; i + 2 <= n; i += 2) {
        ++counts[a[i]], ++second[b[i]], ++third[c[i]];
        ++counts[size + a[i + 1]], ++second[size + b[i + 1]], ++third[size + c[i + 1]];
    }
    if (i < n) ++counts[a[i]], ++second[b[i]], ++third[c[i]];
}

void set_frequencies(Class& c, const uint32_t* counts) {
    const size_t size = n_counts(c.kind) / 2, n = size / 256;
    c.frequencies.reserve(tables_of(c.kind));
    for (uint32_t t = 0; t < tables_of(c.kind); ++t) {
        std::array<uint32_t, 256> table{};
        for (size_t from = 0; from < n; ++from) {
            if ((c.kind < SPHERE ? STREAM_TABLES[c.kind][from].first : from) != t) continue;
            const uint32_t *one = counts + 256 * from, *other = one + size;
            for (size_t s = 0; s < 256; ++s) table[s] += one[s] + other[s];
        }
        c.frequencies.push_back(normalised(table, bits_of(c.kind, t)));
    }
}

}  // namespace mdio::rigid

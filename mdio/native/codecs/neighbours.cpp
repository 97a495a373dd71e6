// Integers differenced along the atoms: each atom against one of the few before it, always the
// same; the atoms sorted by how large their differences are.
//
// What is kept of an atom is one byte: in its low two bits how many atoms before it the other one
// is, less one; in the others its class, by which the atoms are sorted. Before the first atom there
// are some at the origin.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "codes.h"
#include "fold.h"
#include "memory.h"
#include "packed.h"

namespace mdio {
namespace {

constexpr int64_t BACK = 4;     // atoms
constexpr int64_t PAD = 3 * BACK;
constexpr int64_t SAMPLE = 2;   // frames
constexpr int64_t RUN = 1023;   // numbers, a whole number of atoms
constexpr int64_t CLASSES = 64;
constexpr uint32_t MOST = 1u << 27;  // of one difference: sums of 3 * SAMPLE fit in 31 bits

MDIO_INLINE uint32_t cost(uint32_t difference) {
    return std::min(folded(int32_t(difference)), MOST);
}

MDIO_INLINE void add_costs(const uint32_t* x, int64_t n, int64_t back, uint32_t* sums) {
    for (int64_t i = 0; i < n; ++i) sums[i] += cost(x[i] - x[i - 3 * back]);
}

MDIO_INLINE void add_to(uint32_t* x, const int32_t* deltas, int64_t n) {
    for (int64_t i = 0; i < n; ++i) x[i] += uint32_t(deltas[i]);
}

MDIO_INLINE uint64_t bits_along_frames(const int32_t* deltas, int64_t n_atoms) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < 3 * n_atoms; i += 3)
        sum += bits(cost(deltas[i]) + cost(deltas[i + 1]) + cost(deltas[i + 2]));
    return sum;
}

MDIO_INLINE uint64_t choose(const int32_t* deltas, int64_t n_frames, int64_t n_atoms,
                            uint8_t* kept) {
    const int64_t width = 3 * n_atoms, n_sample = std::min(n_frames, SAMPLE);
    uint32_t x[PAD + RUN], sums[BACK][RUN];
    uint64_t total = 0;
    for (int64_t start = 0; start < width; start += RUN) {
        const int64_t n = std::min(RUN, width - start), halo = std::min(start, PAD);
        std::memset(x, 0, sizeof x);
        std::memset(sums, 0, sizeof sums);
        for (int64_t f = 0; f < n_sample; ++f) {
            add_to(x + PAD - halo, deltas + f * width + start - halo, n + halo);
            for (int64_t back = 1; back <= BACK; ++back)
                add_costs(x + PAD, n, back, sums[back - 1]);
        }
        for (int64_t i = 0; i < n; i += 3) {
            uint32_t least = UINT32_MAX, at = 0;
            for (uint32_t b = 0; b < BACK; ++b) {
                const uint32_t sum = sums[b][i] + sums[b][i + 1] + sums[b][i + 2];
                if (sum < least) least = sum, at = b;
            }
            const uint32_t size = bits(least / uint32_t(n_sample));
            kept[(start + i) / 3] = uint8_t(size << 2 | at);
            total += size;
        }
    }
    return total;
}

MDIO_TARGET("avx2")
uint64_t choose_avx2(const int32_t* deltas, int64_t n_frames, int64_t n_atoms, uint8_t* kept) {
    return choose(deltas, n_frames, n_atoms, kept);
}

// Where the atoms of each class begin among the sorted ones, in numbers.
std::array<int64_t, CLASSES> beginnings(const uint8_t* kept, int64_t n_atoms) {
    std::array<int64_t, CLASSES> counts{}, begins{};
    for (int64_t i = 0; i < n_atoms; ++i) counts[kept[i] >> 2] += 3;
    for (int64_t c = 1; c < CLASSES; ++c) begins[c] = begins[c - 1] + counts[c - 1];
    return begins;
}

constexpr int64_t RING = 8;                 // atoms, a power of two and more than BACK
constexpr int64_t FRAMES = NEIGHBOUR_ROWS;  // at a time: atoms wait for others, frames do not
constexpr int64_t BLOCK = 256;              // atoms

// x, y, z and a number that does not matter.
using Four = uint32_t __attribute__((vector_size(16)));

// Frames of differences, up to FRAMES at a time: the first at `data`, `row` numbers apart.
struct Rows {
    const uint32_t* data;
    int64_t row;
};

// `more_behind`: whether four numbers can be loaded where there are three.
template <bool more_behind>
MDIO_INLINE Four load(const uint32_t* from) {
    if (!more_behind) return Four{from[0], from[1], from[2], 0};
    Four x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

// Sums `count` frames, whose results are `stride` bytes apart.
template <int64_t count, bool more_behind, class Code>
MDIO_INLINE void sum_frames(const Rows& rows, const uint8_t* kept,
                            std::array<int64_t, CLASSES> next, const Code& code, int64_t n_atoms,
                            char* to, int64_t stride) {
    Four ring[RING][count] = {};
    uint32_t block[count][3 * BLOCK + 1];
    for (int64_t start = 0; start < n_atoms; start += BLOCK) {
        const int64_t n = std::min(BLOCK, n_atoms - start);
        for (int64_t i = 0; i < n; ++i) {
            const uint8_t how = kept[start + i];
            const uint32_t* from = rows.data + next[how >> 2];
            next[how >> 2] += 3;
            const Four* others = ring[(i - 1 - (how & 3)) & (RING - 1)];
            Four* sums = ring[i & (RING - 1)];
            for (int64_t f = 0; f < count; ++f) {
                sums[f] = others[f] + load<more_behind>(from + f * rows.row);
                std::memcpy(block[f] + 3 * i, &sums[f], sizeof(Four));
            }
        }
        for (int64_t f = 0; f < count; ++f)
            decode_row(block[f], 3 * n, code, to + f * stride + 12 * start);
    }
}

// Sums frames `first` to `last`, which `rows_of(first, count)` fetches, some at a time.
template <bool more_behind, class Code, class RowsOf>
MDIO_INLINE void sum_all(const RowsOf& rows_of, const uint8_t* kept, int64_t n_atoms,
                         const Code& code, const Output& out, const int64_t* atoms, int64_t first,
                         int64_t last) {
    const auto begins = beginnings(kept, n_atoms);
    const int64_t n_needed =
        !atoms ? n_atoms : out.n_atoms ? *std::max_element(atoms, atoms + out.n_atoms) + 1 : 0;
    std::vector<char> picked_from(size_t(atoms ? 12 * FRAMES * n_needed : 0));
    const int64_t stride = atoms ? 12 * n_needed : out.stride;
    for (int64_t f = first; f < last;) {
        const int64_t count = std::min(FRAMES, last - f);
        const Rows rows = rows_of(f, count);
        char* to = out.data + (f - first) * out.stride;
        char* sums = atoms ? picked_from.data() : to;
        if (count == FRAMES)
            sum_frames<FRAMES, more_behind>(rows, kept, begins, code, n_needed, sums, stride);
        else
            for (int64_t i = 0; i < count; ++i)
                sum_frames<1, more_behind>({rows.data + i * rows.row, 0}, kept, begins, code,
                                           n_needed, sums + i * stride, 0);
        if (atoms)
            for (int64_t i = 0; i < count; ++i)
                for (int64_t a = 0; a < out.n_atoms; ++a)
                    std::memcpy(to + i * out.stride + 12 * a, sums + i * stride + 12 * atoms[a],
                                12);
        f += count;
    }
}

struct PackedNeighbours {
    const Packed& packed;
    const uint8_t* kept;
    uint32_t* room;
};

template <class Code>
MDIO_INLINE void sum_plain_rows(const Neighbours& from, const Code& code, const Output& out,
                                const int64_t* atoms) {
    const int64_t row = 3 * from.n_atoms;
    const auto rows_of = [&](int64_t f, int64_t) {
        return Rows{reinterpret_cast<const uint32_t*>(from.differences) + f * row, row};
    };
    sum_all<false>(rows_of, from.kept, from.n_atoms, code, out, atoms, 0, from.n_frames);
}

template <class Code>
MDIO_INLINE void sum_packed_rows(const PackedNeighbours& from, const Code& code, const Output& out,
                                 const int64_t* atoms, int64_t first, int64_t last) {
    const Packed& packed = from.packed;
    const int64_t row = EIGHT * packed.n_eights();
    const Groups unpack = unpacker();
    const auto rows_of = [&](int64_t f, int64_t count) {
        for (int64_t i = 0; i < count; ++i)
            unpack(packed.groups_at(f + i), packed.widths_of(f + i), packed.n_eights(),
                   from.room + i * row);
        return Rows{from.room, row};
    };
    sum_all<true>(rows_of, from.kept, packed.n_numbers / 3, code, out, atoms, first, last);
}

template <class Code>
MDIO_TARGET("avx2,fma")
void sum_plain_rows_avx2(const Neighbours& from, const Code& code, const Output& out,
                         const int64_t* atoms) {
    sum_plain_rows(from, code, out, atoms);
}

template <class Code>
MDIO_TARGET("avx2,fma")
void sum_packed_rows_avx2(const PackedNeighbours& from, const Code& code, const Output& out,
                          const int64_t* atoms, int64_t first, int64_t last) {
    sum_packed_rows(from, code, out, atoms, first, last);
}

template <class Code>
void sum_either(const Neighbours& from, const Code& code, const Output& out,
                const int64_t* atoms) {
    (has_avx2() ? sum_plain_rows_avx2<Code> : sum_plain_rows<Code>)(from, code, out, atoms);
}

template <class Code>
void sum_either(const PackedNeighbours& from, const Code& code, const Output& out,
                const int64_t* atoms, int64_t first, int64_t last) {
    (has_avx2() ? sum_packed_rows_avx2<Code> : sum_packed_rows<Code>)(from, code, out, atoms,
                                                                      first, last);
}

}  // namespace

void sum_neighbours(const Neighbours& from, const Coding& coding, const Output& out, const int64_t* atoms) {
    if (coding.is_xtc)
        sum_either(from, xtc(float(coding.number)), out, atoms);
    else
        sum_either(from, Step{coding.number}, out, atoms);
}

void sum_packed_neighbours(const Packed& packed, const uint8_t* kept, uint32_t* room, const Coding& coding,
                           const Output& out, const mdio_selection& which) {
    const auto [atoms, first, last] = which;
    const PackedNeighbours from{packed, kept, room};
    if (coding.is_xtc)
        sum_either(from, xtc(float(coding.number)), out, atoms, first, last);
    else
        sum_either(from, Step{coding.number}, out, atoms, first, last);
}

}  // namespace mdio

mdio_status mdio_choose_neighbours(mdio_memory* memory, const int32_t* deltas, int64_t n_frames, int64_t n_atoms,
                                   uint8_t* kept, int* is_better) {
    using namespace mdio;
    return guarded(*memory, [&] {
        const int64_t width = 3 * n_atoms, n_sample = std::min(n_frames - 1, SAMPLE);
        const uint64_t per_frame = (has_avx2() ? choose_avx2 : choose)(deltas, n_frames, n_atoms, kept);
        uint64_t along_frames = bits_along_frames(deltas, n_atoms);
        if (n_sample > 0) {
            uint64_t sum = 0;
            for (int64_t s = 0; s < n_sample; ++s)
                sum += bits_along_frames(deltas + (1 + s * (n_frames - 1) / n_sample) * width, n_atoms);
            along_frames += sum * uint64_t(n_frames - 1) / uint64_t(n_sample);
        }
        *is_better = uint64_t(n_frames) * per_frame + uint64_t(n_atoms) < along_frames;
        return MDIO_OK;
    });
}

mdio_status mdio_difference_neighbours(mdio_memory* memory, int32_t* deltas, int64_t n_frames, int64_t n_atoms,
                                       const uint8_t* kept) {
    using namespace mdio;
    return guarded(*memory, [&] {
        const auto begins = beginnings(kept, n_atoms);
        std::vector<uint32_t> padded(size_t(PAD + 3 * n_atoms));
        uint32_t* x = padded.data() + PAD;
        for (int64_t f = 0; f < n_frames; ++f) {
            int32_t* to = deltas + f * 3 * n_atoms;
            add_to(x, to, 3 * n_atoms);
            auto next = begins;
            for (int64_t i = 0; i < n_atoms; ++i) {
                int64_t& at = next[kept[i] >> 2];
                const uint32_t* other = x + 3 * (i - 1 - (kept[i] & 3));
                for (int axis = 0; axis < 3; ++axis) to[at + axis] = int32_t(x[3 * i + axis] - other[axis]);
                at += 3;
            }
        }
        return MDIO_OK;
    });
}

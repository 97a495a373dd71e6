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
#include "kernels.h"

namespace mdio {
namespace {

constexpr int64_t BACK = 4;     // atoms
constexpr int64_t PAD = 3 * BACK;
constexpr int64_t SAMPLE = 2;   // frames
constexpr int64_t RUN = 1023;   // numbers, a whole number of atoms
constexpr int64_t CLASSES = 64;
constexpr uint32_t MOST = 1u << 27;  // of one difference: sums of 3 * SAMPLE fit in 31 bits

MDIO_INLINE uint32_t cost(uint32_t difference) {
    const uint32_t folded = (difference << 1) ^ uint32_t(int32_t(difference) >> 31);
    return std::min(folded, MOST);
}

MDIO_INLINE uint32_t bits(uint32_t sum) { return sum ? 32 - uint32_t(__builtin_clz(sum)) : 0; }

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

template <class Code>
MDIO_INLINE void decode_frame(const uint32_t* x, const Code& code, int64_t n_out,
                              const int64_t* atoms, char* to) {
    for (int64_t i = 0; i < n_out; ++i) {
        const uint32_t* from = x + 3 * (atoms ? atoms[i] : i);
        float xyz[3];
        for (int axis = 0; axis < 3; ++axis) xyz[axis] = code.decode(int32_t(from[axis]));
        std::memcpy(to + 12 * i, xyz, 12);
    }
}

template <class Code>
void sum_neighbours(const Neighbours& from, const Code& code, const Output& out,
                    const int64_t* atoms) {
    const auto begins = beginnings(from.kept, from.n_atoms);
    const int64_t n_needed =
        !atoms ? from.n_atoms : out.n_atoms ? *std::max_element(atoms, atoms + out.n_atoms) + 1 : 0;
    std::vector<uint32_t> padded(size_t(PAD + 3 * n_needed));
    uint32_t* x = padded.data() + PAD;
    for (int64_t f = 0; f < from.n_frames; ++f) {
        const int32_t* differences = from.differences + f * 3 * from.n_atoms;
        auto next = begins;
        for (int64_t i = 0; i < n_needed; ++i) {
            const uint8_t kept = from.kept[i];
            int64_t& at = next[kept >> 2];
            const uint32_t* other = x + 3 * (i - 1 - (kept & 3));
            for (int axis = 0; axis < 3; ++axis)
                x[3 * i + axis] = other[axis] + uint32_t(differences[at + axis]);
            at += 3;
        }
        decode_frame(x, code, out.n_atoms, atoms, out.data + f * out.stride);
    }
}

}  // namespace

bool choose_neighbours(const int32_t* deltas, int64_t n_frames, int64_t n_atoms, uint8_t* kept) {
    const int64_t width = 3 * n_atoms, n_sample = std::min(n_frames - 1, SAMPLE);
    const uint64_t per_frame =
        (has_avx2() ? choose_avx2 : choose)(deltas, n_frames, n_atoms, kept);
    uint64_t along_frames = bits_along_frames(deltas, n_atoms);
    if (n_sample > 0) {
        uint64_t sum = 0;
        for (int64_t s = 0; s < n_sample; ++s)
            sum += bits_along_frames(deltas + (1 + s * (n_frames - 1) / n_sample) * width, n_atoms);
        along_frames += sum * uint64_t(n_frames - 1) / uint64_t(n_sample);
    }
    return uint64_t(n_frames) * per_frame + uint64_t(n_atoms) < along_frames;
}

void difference_neighbours(int32_t* deltas, int64_t n_frames, int64_t n_atoms,
                           const uint8_t* kept) {
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
            for (int axis = 0; axis < 3; ++axis)
                to[at + axis] = int32_t(x[3 * i + axis] - other[axis]);
            at += 3;
        }
    }
}

void sum_neighbours_step(const Neighbours& from, double step, const Output& out,
                         const int64_t* atoms) {
    sum_neighbours(from, Step{step}, out, atoms);
}

void sum_neighbours_xtc(const Neighbours& from, double precision, const Output& out,
                        const int64_t* atoms) {
    sum_neighbours(from, xtc(float(precision)), out, atoms);
}

}  // namespace mdio

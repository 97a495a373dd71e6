// Packed differences along the frames, summed as they are unpacked, to coordinates.
#include <algorithm>
#include <cstring>
#include <vector>

#include "codes.h"
#include "memory.h"
#include "packed.h"

namespace mdio {
namespace {

// Which groups are needed, in runs.
struct Run {
    int64_t begin;
    int64_t end;
};

std::vector<Run> runs_of(const int64_t* atoms, int64_t n, int64_t n_groups) {
    std::vector<uint8_t> needed(size_t(n_groups), 0);
    for (int64_t i = 0; i < n; ++i) {
        needed[size_t(3 * atoms[i] / GROUP)] = 1;
        needed[size_t((3 * atoms[i] + 2) / GROUP)] = 1;
    }
    std::vector<Run> runs;
    for (int64_t g = 0; g < n_groups; ++g) {
        if (!needed[size_t(g)]) continue;
        if (runs.empty() || runs.back().end != g) runs.push_back({g, g});
        ++runs.back().end;
    }
    return runs;
}

// The first frame is differenced along the atoms; `before` is the atom before these, then the last.
MDIO_INLINE void sum_atoms(uint32_t* x, int64_t n, uint32_t* before) {
    for (int64_t i = 0; i < n; i += 3)
        for (int64_t axis = 0; axis < 3; ++axis) x[i + axis] = before[axis] += x[i + axis];
}

// All atoms: in runs of groups, all frames of one before the next, so that the sums stay in the
// first-level cache.
template <class Code>
MDIO_INLINE void sum_all(const Packed& packed, const Code& code, const Output& out, int64_t first,
                         int64_t last) {
    constexpr int64_t BLOCK = 3 * 42;  // groups, of whole atoms
    uint32_t sums[BLOCK * GROUP], before[3] = {};
    const Groups add = adder();
    auto next = packed.begins;
    for (int64_t g = 0; g < packed.n_groups(); g += BLOCK) {
        const int64_t n = std::min(BLOCK * GROUP, packed.n_numbers - GROUP * g);
        std::memset(sums, 0, sizeof sums);
        for (int64_t f = 0; f < last; ++f) {
            const uint8_t* from = packed.groups + next[size_t(f)];
            const uint8_t* end = add(from, packed.widths_of(f) + g, eights_of(n), sums);
            next[size_t(f)] += end - from;
            if (f == 0) sum_atoms(sums, n, before);
            if (f >= first)
                decode_row(sums, n, code, out.data + (f - first) * out.stride + 4 * GROUP * g);
        }
    }
}

// Some atoms: only of the groups that hold any, but for the first frame.
template <class Code>
MDIO_INLINE void sum_some(const Packed& packed, const Code& code, const Output& out,
                          const int64_t* atoms, int64_t first, int64_t last) {
    const auto runs = runs_of(atoms, out.n_atoms, packed.n_groups());
    std::vector<uint32_t> sums(size_t(EIGHT * packed.n_eights()));
    const Groups add = adder();
    for (int64_t f = 0; f < last; ++f) {
        const uint8_t *from = packed.groups_at(f), *widths = packed.widths_of(f);
        if (f == 0) {
            uint32_t before[3] = {};
            add(from, widths, packed.n_eights(), sums.data());
            sum_atoms(sums.data(), packed.n_numbers, before);
        } else {
            int64_t g = 0;
            for (const Run& run : runs) {
                from += EIGHTS * sum_of(widths + g, run.begin - g);
                const int64_t last_eight = std::min(EIGHTS * run.end, packed.n_eights());
                from = add(from, widths + run.begin, last_eight - EIGHTS * run.begin,
                           sums.data() + GROUP * run.begin);
                g = run.end;
            }
        }
        if (f < first) continue;
        char* to = out.data + (f - first) * out.stride;
        for (int64_t i = 0; i < out.n_atoms; ++i)
            decode_row(sums.data() + 3 * atoms[i], 3, code, to + 12 * i);
    }
}

template <class Code>
MDIO_INLINE void sum(const Packed& packed, const Code& code, const Output& out,
                     const int64_t* atoms, int64_t first, int64_t last) {
    if (atoms)
        sum_some(packed, code, out, atoms, first, last);
    else
        sum_all(packed, code, out, first, last);
}

template <class Code>
MDIO_TARGET("avx2,fma")
void sum_avx2(const Packed& packed, const Code& code, const Output& out, const int64_t* atoms,
              int64_t first, int64_t last) {
    sum(packed, code, out, atoms, first, last);
}

}  // namespace

void sum_packed(const Packed& packed, const Coding& coding, const Output& out, const mdio_selection& which) {
    const auto [atoms, first, last] = which;
    if (coding.is_xtc)
        (has_avx2() ? sum_avx2<Xtc> : sum<Xtc>)(packed, xtc(float(coding.number)), out, atoms, first, last);
    else
        (has_avx2() ? sum_avx2<Step> : sum<Step>)(packed, {coding.number}, out, atoms, first, last);
}

namespace {

// Where neighbours are unpacked to; what is large is not kept.
struct Room {
    std::unique_ptr<uint32_t[]> numbers;
    size_t n = 0;

    static constexpr size_t MOST_KEPT = 8 << 20;
    uint32_t* fit(size_t needed) {
        if (needed > n) numbers.reset(), numbers.reset(new uint32_t[needed]), n = needed;
        return numbers.get();
    }
    void leave() {
        if (n > MOST_KEPT) numbers.reset(), n = 0;
    }
};

}  // namespace
}  // namespace mdio

mdio_status mdio_unpack(mdio_memory* memory, const mdio_packed* from, mdio_coding coding,
                        const mdio_selection* selection, const mdio_output* out) {
    using namespace mdio;
    if (const char* what = wrong_with(from->n_frames, from->n_atoms, coding, *selection, *out))
        return wrong(*memory, what);
    return guarded(*memory, [&] {
        const Packed whole = packed(from->data, from->nbytes, from->n_frames, 3 * from->n_atoms);
        if (!from->kept) return sum_packed(whole, coding, *out, *selection), MDIO_OK;
        auto& room = mdio_memory::kept<Room>(memory->unpacking);
        uint32_t* numbers = room.fit(size_t(NEIGHBOUR_ROWS * EIGHT * whole.n_eights() + 1));
        sum_packed_neighbours(whole, from->kept, numbers, coding, *out, *selection);
        room.leave();
        return MDIO_OK;
    });
}

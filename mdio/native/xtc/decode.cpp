// How coordinates are packed: atoms come in groups. A group is one whole triple of integers, then a
// bit that says whether a number of five bits follows, which changes the length of the run
// (number / 3) and then the index of the small size (number % 3 - 1), then the run: differences,
// each to the atom before, in triples of the small size. With a run, the first two atoms of a group
// change places (the oxygen of a water is stored between its hydrogens).
//
// A first pass, over some hundred atoms, only follows the lengths from group to group: it is bound
// by latency, so it does nothing else. A second pass takes the integers, whose places are then
// known, and a third makes floats of them.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "bits.h"
#include "format.h"
#include "quad.h"
#include "triple.h"

namespace mdio::xtc {

namespace {

constexpr int CHUNK = 256;  // atoms of a pass
constexpr int MAX_RUN = 8;  // differences; the five bits could say 10
// Behind the last atom, so many may be left over, as of a writer that counts its padding: of more,
// some would have belonged to atoms.
constexpr std::uint64_t SPARE_BITS = 39;

typedef std::int32_t Int4 __attribute__((vector_size(16)));
typedef float Float4 __attribute__((vector_size(16)));

// Where a group is, in bits from the chunk's first byte.
struct Group {
    std::uint32_t bit;
    std::uint32_t run_bit;
    std::int32_t small;
    std::int32_t run;
};

struct Workspace {
    Triple small[N_SMALL + 1];
    TriplePair pairs[TriplePair::MAX_BITS + 1];
#if MDIO_X86
    TripleQuad quads[TripleQuad::MAX_BITS + 1];
#endif
    Triple whole;
    int widths[3];  // bits of each axis, where whole triples are stored axis by axis
    bool by_axis;
    Group groups[CHUNK];
    Uint4 integers[CHUNK + MAX_RUN + 2];  // a last run and what is stored beyond it

    Workspace() {
        for (int i = FIRST_SMALL; i <= N_SMALL; ++i) {
            const auto size = static_cast<std::uint32_t>(std::max(SMALL_SIZES[i], 2));
            const std::uint32_t sizes[3] = {size, size, size};
            const auto offset = -static_cast<std::uint32_t>(SMALL_SIZES[i] / 2);
            small[i].set(i, sizes, Uint4{offset, offset, offset, 0});
            if (i <= TriplePair::MAX_BITS) pairs[i].set(small[i]);
#if MDIO_X86
            if (i <= TripleQuad::MAX_BITS) quads[i].set(small[i]);
#endif
        }
    }

    void begin(const Header& header) {
        const std::uint32_t* sizes = header.sizes;
        by_axis = std::max({sizes[0], sizes[1], sizes[2]}) > LARGEST_JOINT_SIZE;
        for (int axis = 0; axis < 3; ++axis) widths[axis] = bit_length(sizes[axis]);
        const int bits = by_axis ? widths[0] + widths[1] + widths[2] : product_bits(sizes);
        Uint4 lowest{};
        for (int axis = 0; axis < 3; ++axis)
            lowest[axis] = static_cast<std::uint32_t>(header.lowest[axis]);
        whole.set(bits, sizes, lowest);
    }

    Uint4 read_whole(const std::uint8_t* data, std::uint32_t bit) const {
        return by_axis ? read_by_axis(data, bit) : whole.read(data, bit);
    }

  private:
    Uint4 read_by_axis(const std::uint8_t* data, std::uint32_t bit) const {
        Uint4 triple{};
        for (int axis = 0; axis < 3; bit += widths[axis++])
            triple[axis] = static_cast<std::uint32_t>(load_be64(data + (bit >> 3)) << (bit & 7) >>
                                                      (64 - widths[axis]));
        return triple + whole.offset;
    }
};

// Where in the stream the decoder is.
struct Walk {
    const std::uint8_t* data;
    std::uint64_t n_bits;
    std::int64_t n_atoms;
    int small;
    int run = 0;
    std::uint64_t bit = 0;
    std::int64_t done = 0;  // atoms of the chunks before
    int n_found = 0;        // atoms of this chunk
};

[[noreturn]] void fail_stream(const char* what) {
    throw std::invalid_argument(std::string("its coordinates do not decode (") + what + ")");
}

// The first pass: the next groups, of about CHUNK atoms; returns how many groups.
int find_groups(Workspace& work, Walk& walk, std::uint64_t base_bit) {
    const std::uint8_t* data = walk.data + base_bit / 8;
    const std::uint64_t end = walk.n_bits - base_bit;
    const std::int64_t left = walk.n_atoms - walk.done;
    const int wanted = static_cast<int>(std::min<std::int64_t>(CHUNK, left));
    const int whole_bits = work.whole.n_bits;
    std::uint64_t bit = walk.bit - base_bit;
    int small = walk.small, run = walk.run, n_found = 0, n_groups = 0;
    while (n_found < wanted) {
        // Up to here all bits are the frame's; what a group reads beyond is PADDING at worst.
        if (bit > end) fail_stream("the bits end early");
        const std::uint64_t flag = bit + whole_bits;
        const auto code =
            static_cast<std::uint32_t>(load_be64(data + (flag >> 3)) << (flag & 7) >> 58);
        const int now = small;
        std::uint64_t run_bit = flag + 1;
        if (code >= 32) {  // a branch, since it never is in water, and often in a protein
            const int number = static_cast<int>(code & 31);
            run_bit = flag + 6;
            run = number / 3;
            small += number % 3 - 1;
            if (run > MAX_RUN) fail_stream("a run is too long");
            if (small < FIRST_SMALL || small > N_SMALL)
                fail_stream("the small size leaves its range");
        }
        if (now == N_SMALL && run > 0) fail_stream("a run has no size");
        work.groups[n_groups++] = {static_cast<std::uint32_t>(bit),
                                   static_cast<std::uint32_t>(run_bit), now, run};
        n_found += 1 + run;
        bit = run_bit + static_cast<std::uint64_t>(run * now);
    }
    if (n_found > left) fail_stream("a run goes beyond the last atom");
    if (bit > end) fail_stream("the bits end early");
    walk.bit = base_bit + bit;
    walk.small = small;
    walk.run = run;
    walk.n_found = n_found;
    return n_groups;
}

// The differences of a group, of any size, to the atom before, which at first is `here`.
void take_one_by_one(const Triple& triple, const std::uint8_t* data, const Group& group, Uint4 here,
                     Uint4* out) {
    std::uint32_t bit = group.run_bit;
    for (int k = 0; k < group.run; ++k, bit += static_cast<std::uint32_t>(triple.n_bits)) {
        here += triple.read(data, bit);
        out[k == 0 ? 0 : k + 1] = here;
    }
}

// The second pass: integers of the atoms of `n_groups`. Two differences are taken at a time, also
// where there is only one left: what is stored for the other one is overwritten by the next group.
void take_integers(Workspace& work, const std::uint8_t* data, int n_groups) {
    Uint4* out = work.integers;
    for (int i = 0; i < n_groups; ++i) {
        const Group group = work.groups[i];
        Uint4 here = work.read_whole(data, group.bit);
        out[group.run > 0 ? 1 : 0] = here;
        std::uint32_t bit = group.run_bit;
        const auto step = static_cast<std::uint32_t>(group.small);
        if (group.small > TriplePair::MAX_BITS) {
            take_one_by_one(work.small[group.small], data, group, here, out);
        } else {
            const TriplePair& pair = work.pairs[group.small];
            Uint4 first, second;
            for (int k = 0; k < group.run; k += 2, bit += 2 * step) {
                pair.read(data, bit, first, second);
                here += first;
                out[k == 0 ? 0 : k + 1] = here;
                here += second;
                out[k + 2] = here;
            }
        }
        out += 1 + group.run;
    }
}

#if MDIO_X86

// The same with four differences at a time.
MDIO_QUADS void take_integers_by_fours(Workspace& work, const std::uint8_t* data, int n_groups) {
    Uint4* out = work.integers;
    for (int i = 0; i < n_groups; ++i) {
        const Group group = work.groups[i];
        const Uint4 whole = work.read_whole(data, group.bit);
        out[group.run > 0 ? 1 : 0] = whole;
        if (group.small > TripleQuad::MAX_BITS) {
            take_one_by_one(work.small[group.small], data, group, whole, out);
        } else if (group.run > 0) {
            const TripleQuad& quad = work.quads[group.small];
            auto here = reinterpret_cast<__m128i>(whole);
            here = quad.read(data, group.run_bit, here, out, out + 2);
            if (group.run > 4)
                quad.read(data, group.run_bit + 4 * quad.n_bits, here, out + 5, out + 6);
        }
        out += 1 + group.run;
    }
}

#endif

// Integers as coordinates in angstrom, in xdrfile's and MDAnalysis' order of operations.
inline Float4 to_angstrom(Uint4 integers, float nm) {
    return __builtin_convertvector(reinterpret_cast<Int4>(integers), Float4) * nm * 10.0f;
}

inline void store_atom(Uint4 integers, float nm, float* target) {
    const Float4 x = to_angstrom(integers, nm);
    std::memcpy(target, &x, 3 * sizeof(float));
}

// The third pass, without a selection. Four floats are stored for each atom, of which the next
// atom overwrites the last.
void store_atoms(const Uint4* integers, int n, bool is_end, float nm, float* target) {
    const int n_spilling = is_end ? n - 1 : n;
    for (int i = 0; i < n_spilling; ++i, target += 3) {
        const Float4 x = to_angstrom(integers[i], nm);
        std::memcpy(target, &x, sizeof x);
    }
    if (is_end) store_atom(integers[n - 1], nm, target);
}

#if MDIO_X86

// The same with two atoms at a time.
MDIO_QUADS void store_atoms_by_twos(const Uint4* integers, int n, bool is_end, float nm,
                                    float* target) {
    const int n_spilling = is_end ? n - 1 : n;
    int i = 0;
    for (; i + 4 <= n_spilling; i += 4) {
        store_two(integers + i, nm, target + 3 * i);
        store_two(integers + i + 2, nm, target + 3 * i + 6);
    }
    store_atoms(integers + i, n - i, is_end, nm, target + 3 * i);
}

#endif

// The passes for this processor.
struct Passes {
    decltype(&take_integers) take = take_integers;
    decltype(&store_atoms) store = store_atoms;

    Passes() {
#if MDIO_X86
        if (has_quads()) {
            take = take_integers_by_fours;
            store = store_atoms_by_twos;
        }
#endif
    }
};

void unpack(Workspace& work, const Header& header, const std::uint8_t* data,
            const Selection& wanted, float* out) {
    work.begin(header);
    const Passes passes;
    const float nm = 1.0f / header.precision;
    Walk walk{data, 8 * header.packed_nbytes, header.n_atoms, header.small};
    std::int64_t next = 0;  // of the selection
    while (walk.done < header.n_atoms && (wanted.atoms == nullptr || next < wanted.n)) {
        const std::uint64_t base_bit = walk.bit / 8 * 8;
        const int n_groups = find_groups(work, walk, base_bit);
        const std::int64_t end = walk.done + walk.n_found;
        if (wanted.atoms == nullptr) {
            passes.take(work, data + base_bit / 8, n_groups);
            passes.store(work.integers, walk.n_found, end == header.n_atoms, nm,
                         out + 3 * walk.done);
        } else if (wanted.atoms[next] < end) {
            passes.take(work, data + base_bit / 8, n_groups);
            for (; next < wanted.n && wanted.atoms[next] < end; ++next)
                store_atom(work.integers[wanted.atoms[next] - walk.done], nm,
                           out + 3 * (wanted.targets ? wanted.targets[next] : next));
        }
        walk.done = end;
    }
    if (walk.done == header.n_atoms && walk.bit + SPARE_BITS < walk.n_bits)
        fail_stream("bits are left over");
}

}  // namespace

struct Decoder::State {
    Workspace work;
};

Decoder::Decoder() {
    static const State fresh;  // its tables take a while to make
    state_ = std::make_unique<State>(fresh);
}

Decoder::~Decoder() = default;

Header Decoder::decode(const std::uint8_t* frame, std::size_t nbytes, std::int64_t n_atoms,
                       const Selection& selection, float* out) {
    const Header header = parse_header(frame, nbytes, n_atoms);
    if (header.nbytes != nbytes)
        throw std::invalid_argument(wrong_nbytes(header.nbytes, nbytes));
    if (header.n_atoms > UNCOMPRESSED_ATOMS) {
        unpack(state_->work, header, frame + header.begin, selection, out);
        return header;
    }
    const std::int64_t n = selection.atoms ? selection.n : header.n_atoms;
    for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t atom = selection.atoms ? selection.atoms[i] : i;
        float* target = out + 3 * (selection.targets ? selection.targets[i] : i);
        for (int axis = 0; axis < 3; ++axis)
            target[axis] = load_float(frame + header.begin + 12 * atom + 4 * axis) * 10.0f;
    }
    return header;
}

}  // namespace mdio::xtc

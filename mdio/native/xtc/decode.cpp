// How coordinates are packed: atoms come in groups. A group is one whole triple of integers, then a
// bit that says whether a number of five bits follows, which changes the length of the run
// (number / 3) and then the index of the small size (number % 3 - 1), then the run: differences,
// each to the atom before, in triples of the small size. With a run, the first two atoms of a group
// change places (the oxygen of a water is stored between its hydrogens). A triple is one number of
// mixed radix, least significant byte first, whose bytes follow each other in a stream that fills
// bytes from their most significant bit.
//
// Lengths of runs are hard to predict, so nothing here branches on them: some hundred atoms at a
// time, a first pass only finds where each atom's bits begin (writing eight places for every run,
// of which the next group overwrites those that the run has not), and a second pass, a plain loop
// over atoms, takes the bits from there.
#include <algorithm>
#include <stdexcept>

#include "bits.h"
#include "format.h"

namespace mdio::xtc {

namespace {

using Wide = unsigned __int128;

constexpr int CHUNK = 512;   // atoms of a pass
constexpr int MAX_RUN = 8;   // differences; the five bits could say 10
constexpr int WHOLE = 0;     // row of the whole triples; that of small ones is their index

// A place is the bit where an atom begins (counted from the chunk's first byte), its row, and where
// it goes relative to its turn, plus one.
constexpr int ROW_SHIFT = 20;
constexpr int TURN_SHIFT = 27;
constexpr std::uint32_t BIT_MASK = (1u << ROW_SHIFT) - 1;
constexpr std::uint32_t ROW_MASK = (1u << (TURN_SHIFT - ROW_SHIFT)) - 1;

// A triple is narrow if one 64-bit load at any bit of a byte has it and if its number times its
// largest size stays below 2^64, which makes both divisions plain multiplications. That holds up
// to a box of about 650 A at 0.01 A.
constexpr int NARROW_LOAD_BITS = 57;
constexpr int NARROW_PRODUCT_BITS = 64;

// x, y, z, and a lane that is not used.
typedef std::int32_t Int4 __attribute__((vector_size(16)));
typedef std::uint32_t Uint4 __attribute__((vector_size(16)));
typedef float Float4 __attribute__((vector_size(16)));

// How to read one kind of triple.
struct alignas(128) Row {
    std::uint64_t low_mask;   // of the whole bytes
    std::uint64_t high_mask;  // of the last, partial byte, moved down
    std::uint64_t factor_z, factor_y;  // 2^64 / size, rounded up
    std::uint32_t size_z, size_y;
    std::uint32_t high_shift;
    int n_bits;
    Uint4 offset;
    Uint4 keep;  // all ones where the triple is a difference
    Reciprocal by_z, by_y;
    bool narrow;

    void set(int bits, const std::uint32_t sizes[3], const std::uint32_t offsets[3], bool small) {
        n_bits = bits;
        const int n_whole = std::min(bits - 1, 63) / 8 * 8;
        const int n_rest = std::min(bits, 64) - n_whole;
        low_mask = (std::uint64_t(1) << n_whole) - 1;
        high_shift = 8 - n_rest;
        high_mask = ((std::uint64_t(1) << n_rest) - 1) << n_whole;
        size_z = sizes[2];
        size_y = sizes[1];
        factor_z = ~std::uint64_t(0) / size_z + 1;
        factor_y = ~std::uint64_t(0) / size_y + 1;
        by_z = Reciprocal(sizes[2]);
        by_y = Reciprocal(sizes[1]);
        offset = Uint4{offsets[0], offsets[1], offsets[2], 0};
        const std::uint32_t lane = small ? ~0u : 0u;
        keep = Uint4{lane, lane, lane, lane};
        narrow = bits <= NARROW_LOAD_BITS && size_z > 1 && size_y > 1 &&
                 bits + bit_length(std::max(size_z, size_y)) <= NARROW_PRODUCT_BITS;
    }
};

struct Workspace {
    Row rows[N_SMALL + 1];
    std::uint32_t run_places[N_SMALL + 1][MAX_RUN];  // of a run that begins at bit 0
    std::uint32_t places[CHUNK + 1 + MAX_RUN];
    Uint4 integers[CHUNK + 1 + MAX_RUN];
    int widths[3];  // bits of each axis where a whole triple is stored axis by axis
    bool split;

    Workspace() {
        for (int small = FIRST_SMALL; small <= N_SMALL; ++small) {
            const std::uint32_t size = std::max(SMALL_SIZES[small], 1);
            const std::uint32_t half = -static_cast<std::uint32_t>(SMALL_SIZES[small] / 2);
            const std::uint32_t sizes[3] = {size, size, size};
            const std::uint32_t offsets[3] = {half, half, half};
            rows[small].set(small, sizes, offsets, true);
            for (std::uint32_t k = 0; k < MAX_RUN; ++k) {
                const std::uint32_t turn = k == 0 ? 0 : 1;  // the first of a run goes one back
                run_places[small][k] = (k * small) | (small << ROW_SHIFT) | (turn << TURN_SHIFT);
            }
        }
    }

    void begin(const Header& header) {
        const std::uint32_t largest =
            std::max({header.sizes[0], header.sizes[1], header.sizes[2]});
        split = largest > LARGEST_JOINT_SIZE;
        int bits = 0;
        if (split) {
            for (int axis = 0; axis < 3; ++axis) {
                widths[axis] = bit_length(header.sizes[axis]);
                bits += widths[axis];
            }
        } else {
            const Wide product = Wide(header.sizes[0]) * header.sizes[1] * header.sizes[2];
            const auto above = static_cast<std::uint64_t>(product >> 64);
            bits = above ? 64 + bit_length(above) : bit_length(static_cast<std::uint64_t>(product));
        }
        std::uint32_t lowest[3];
        for (int axis = 0; axis < 3; ++axis)
            lowest[axis] = static_cast<std::uint32_t>(header.lowest[axis]);
        rows[WHOLE].set(bits, header.sizes, lowest, false);
    }
};

// Value of the triple at `bit`, as it was before its bytes were put in order of significance.
inline std::uint64_t take_narrow(const std::uint8_t* data, std::uint32_t bit, const Row& row) {
    const std::uint64_t word = __builtin_bswap64(load_be64(data + (bit >> 3)) << (bit & 7));
    return (word & row.low_mask) | ((word >> row.high_shift) & row.high_mask);
}

inline Wide take_wide(const std::uint8_t* data, std::uint32_t bit, const Row& row) {
    const std::uint8_t* p = data + (bit >> 3);
    const Wide both = ((Wide(load_be64(p)) << 64) | load_be64(p + 8)) << (bit & 7);
    const std::uint64_t word = __builtin_bswap64(static_cast<std::uint64_t>(both >> 64));
    const Wide value = (word & row.low_mask) | ((word >> row.high_shift) & row.high_mask);
    if (row.n_bits <= 64) return value;
    return value | (Wide(static_cast<std::uint64_t>(both) >> (128 - row.n_bits)) << 64);
}

// Quotient of up to 72 bits by up to 24, in two steps of which each fits `Reciprocal`.
inline std::uint64_t divide_wide(Wide value, const Reciprocal& by) {
    const auto upper = static_cast<std::uint64_t>(value >> 32);
    const std::uint64_t quotient = by.divide(upper);
    const std::uint64_t rest = upper - quotient * by.divisor;
    const std::uint64_t lower = (rest << 32) | static_cast<std::uint32_t>(value);
    return (quotient << 32) + by.divide(lower);
}

inline std::uint32_t take_bits(const std::uint8_t* data, std::uint32_t bit, int n_bits) {
    return static_cast<std::uint32_t>(load_be64(data + (bit >> 3)) << (bit & 7) >> (64 - n_bits));
}

// The second pass: integers of `n` atoms from their places.
template <bool WIDE>
void take_integers(Workspace& work, const std::uint8_t* data, int n) {
    Uint4 here{};
    for (int i = 0; i < n; ++i) {
        const std::uint32_t place = work.places[i];
        const std::uint32_t bit = place & BIT_MASK;
        const std::uint32_t index = (place >> ROW_SHIFT) & ROW_MASK;
        const Row& row = work.rows[index];
        std::uint32_t x, y, z;
        if constexpr (WIDE) {
            if (work.split && index == WHOLE) {
                x = take_bits(data, bit, work.widths[0]);
                y = take_bits(data, bit + work.widths[0], work.widths[1]);
                z = take_bits(data, bit + work.widths[0] + work.widths[1], work.widths[2]);
            } else {
                const Wide value = take_wide(data, bit, row);
                const std::uint64_t xy = divide_wide(value, row.by_z);
                x = static_cast<std::uint32_t>(row.by_y.divide(xy));
                y = static_cast<std::uint32_t>(xy) - x * row.size_y;
                z = static_cast<std::uint32_t>(value) - static_cast<std::uint32_t>(xy) * row.size_z;
            }
        } else {
            const std::uint64_t value = take_narrow(data, bit, row);
            const auto xy = static_cast<std::uint64_t>(Wide(value) * row.factor_z >> 64);
            x = static_cast<std::uint32_t>(Wide(xy) * row.factor_y >> 64);
            y = static_cast<std::uint32_t>(xy) - x * row.size_y;
            z = static_cast<std::uint32_t>(value) - static_cast<std::uint32_t>(xy) * row.size_z;
        }
        here = Uint4{x, y, z, 0} + row.offset + (here & row.keep);
        work.integers[i + int(place >> TURN_SHIFT) - 1] = here;
    }
}

// Where in the stream the decoder is.
struct Walk {
    const std::uint8_t* data;
    std::uint64_t n_bits;
    std::int64_t n_atoms;
    std::uint64_t bit = 0;
    std::int64_t done = 0;
    int small;
    int run = 0;
    bool wide;
};

[[noreturn]] void fail_stream(const char* what) {
    throw std::invalid_argument(std::string("its coordinates do not decode (") + what + ")");
}

// The first pass: places of the next atoms, about CHUNK of them; returns how many.
int find_places(Workspace& work, Walk& walk, std::uint64_t base_bit) {
    const std::uint32_t whole_bits = work.rows[WHOLE].n_bits;
    const int wanted = static_cast<int>(std::min<std::int64_t>(CHUNK, walk.n_atoms - walk.done));
    const std::uint8_t* data = walk.data + base_bit / 8;
    const std::uint64_t end = walk.n_bits - base_bit;
    std::uint64_t bit = walk.bit - base_bit;
    int small = walk.small, run = walk.run, n = 0;
    while (n < wanted) {
        if (bit > end) fail_stream("the bits end early");
        const std::uint64_t flag = bit + whole_bits;
        const auto code =
            static_cast<std::uint32_t>(load_be64(data + (flag >> 3)) << (flag & 7) >> 58);
        const bool changes = code >= 32;
        const std::uint32_t number = code & 31;
        run = changes ? static_cast<int>(number / 3) : run;
        const int step = changes ? static_cast<int>(number % 3) - 1 : 0;
        const auto begin = static_cast<std::uint32_t>(flag + 1 + (changes ? 5 : 0));
        if (run > MAX_RUN) fail_stream("a run is too long");
        if (small == N_SMALL && run > 0) fail_stream("a run has no size");
        work.places[n] = static_cast<std::uint32_t>(bit) | ((run > 0 ? 2u : 1u) << TURN_SHIFT);
        const std::uint32_t* pattern = work.run_places[small];
        std::uint32_t* places = work.places + n + 1;
        for (int k = 0; k < MAX_RUN; ++k) places[k] = pattern[k] + begin;
        n += 1 + run;
        bit = begin + static_cast<std::uint32_t>(run * small);
        small += step;
        if (small < FIRST_SMALL || small > N_SMALL) fail_stream("the small size leaves its range");
        walk.wide |= !work.rows[small].narrow;
    }
    if (n > walk.n_atoms - walk.done) fail_stream("a run goes beyond the last atom");
    walk.bit = base_bit + bit;
    if (walk.bit > walk.n_bits) fail_stream("the bits end early");
    walk.small = small;
    walk.run = run;
    return n;
}

// Integers as coordinates in angstrom, in xdrfile's and MDAnalysis' order of operations.
inline Float4 to_angstrom(Uint4 integers, float nm) {
    return __builtin_convertvector(reinterpret_cast<Int4>(integers), Float4) * nm * 10.0f;
}

inline void store_atom(Uint4 integers, float nm, float* target) {
    const Float4 x = to_angstrom(integers, nm);
    std::memcpy(target, &x, 3 * sizeof(float));
}

void unpack(Workspace& work, const Header& header, const std::uint8_t* data,
            const Selection& wanted, float* out) {
    work.begin(header);
    const float nm = 1.0f / header.precision;
    Walk walk;
    walk.data = data;
    walk.n_bits = 8 * header.packed_nbytes;
    walk.n_atoms = header.n_atoms;
    walk.small = header.small;
    walk.wide = !work.rows[WHOLE].narrow || !work.rows[header.small].narrow;
    std::int64_t next = 0;  // of the selection
    while (walk.done < header.n_atoms && (wanted.atoms == nullptr || next < wanted.n)) {
        const std::uint64_t base_bit = walk.bit / 8 * 8;
        const int n = find_places(work, walk, base_bit);
        const std::int64_t end = walk.done + n;
        if (wanted.atoms == nullptr || wanted.atoms[next] < end) {
            if (walk.wide)
                take_integers<true>(work, data + base_bit / 8, n);
            else
                take_integers<false>(work, data + base_bit / 8, n);
        }
        if (wanted.atoms == nullptr) {
            // Four floats are stored for each atom, of which the next atom overwrites the last.
            float* target = out + 3 * walk.done;
            const int n_spilling = end < header.n_atoms ? n : n - 1;
            for (int i = 0; i < n_spilling; ++i, target += 3) {
                const Float4 x = to_angstrom(work.integers[i], nm);
                std::memcpy(target, &x, sizeof x);
            }
            if (n_spilling < n) store_atom(work.integers[n - 1], nm, target);
        } else {
            for (; next < wanted.n && wanted.atoms[next] < end; ++next) {
                float* target = out + 3 * (wanted.targets ? wanted.targets[next] : next);
                store_atom(work.integers[wanted.atoms[next] - walk.done], nm, target);
            }
        }
        walk.done = end;
    }
}

}  // namespace

struct Decoder::State : Workspace {};

Decoder::Decoder() {
    static const State fresh;
    state_ = std::make_unique<State>(fresh);
}

Decoder::~Decoder() = default;

Header Decoder::decode(const std::uint8_t* frame, std::size_t nbytes, std::int64_t n_atoms,
                       const Selection& selection, float* out) {
    const Header header = parse_header(frame, nbytes, n_atoms);
    if (header.nbytes != nbytes)
        throw std::invalid_argument(wrong_nbytes(header.nbytes, nbytes));
    if (header.n_atoms > UNCOMPRESSED_ATOMS) {
        unpack(*state_, header, frame + header.begin, selection, out);
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

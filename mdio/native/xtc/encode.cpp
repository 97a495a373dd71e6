// The way back: see decode.cpp for how atoms are packed. Which runs and small sizes a writer picks
// is its own affair; here every choice is that of xdrfile, so that the bytes are the same.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "bits.h"
#include "format.h"
#include "triple.h"

namespace mdio::xtc {

namespace {

using Atom = std::array<std::int32_t, 3>;

constexpr int MAX_RUN = 8;
constexpr int LAST_SMALL = N_SMALL - 1;  // see format.h: what xdrfile does beyond is undefined
constexpr float INTEGER_LIMIT = 2147483645.0f;

// Bits from the most significant one of each byte on. The buffer has room for whatever comes.
class BitStream {
  public:
    explicit BitStream(std::size_t n_atoms) : bytes_(13 * n_atoms + PADDING) {}

    // The lowest `n_bits` (up to 56) of `value`.
    void put(std::uint64_t value, int n_bits) {
        if (n_bits > 0) put_left(value << (64 - n_bits), n_bits);
    }

    // A number of `n_bits`, least significant byte first.
    void put_number(Wide value, int n_bits) {
        for (; n_bits > 48; n_bits -= 32, value >>= 32)
            put(__builtin_bswap32(static_cast<std::uint32_t>(value)), 32);
        const int n_whole = (n_bits - 1) / 8 * 8;
        const auto word = static_cast<std::uint64_t>(value);
        const std::uint64_t whole = word & ((std::uint64_t(1) << n_whole) - 1);
        const std::uint64_t rest = word >> n_whole << (8 - (n_bits - n_whole));
        put_left(__builtin_bswap64(whole | (rest << n_whole)), n_bits);
    }

    std::size_t nbytes() const { return (bit_ + 7) / 8; }
    const std::uint8_t* data() const { return bytes_.data(); }

  private:
    // The highest `n_bits` (up to 56) of `word`, whose others are zero.
    void put_left(std::uint64_t word, int n_bits) {
        std::uint8_t* p = bytes_.data() + bit_ / 8;
        store_be64(p, (std::uint64_t(*p) << 56) | (word >> (bit_ % 8)));
        bit_ += n_bits;
    }

    std::vector<std::uint8_t> bytes_;
    std::size_t bit_ = 0;
};

bool within(const Atom& a, const Atom& b, std::int64_t limit) {
    for (int axis = 0; axis < 3; ++axis)
        if (std::abs(std::int64_t(a[axis]) - b[axis]) >= limit) return false;
    return true;
}

// xdrfile's sums are 32-bit and wrap.
std::int32_t squared_distance(const Atom& a, const Atom& b) {
    std::uint32_t sum = 0;
    for (int axis = 0; axis < 3; ++axis) {
        const std::uint32_t d = std::uint32_t(a[axis]) - std::uint32_t(b[axis]);
        sum += d * d;
    }
    return static_cast<std::int32_t>(sum);
}

std::int32_t path_distance(const Atom& a, const Atom& b) {
    std::uint32_t sum = 0;
    for (int axis = 0; axis < 3; ++axis)
        sum += static_cast<std::uint32_t>(std::abs(std::int64_t(a[axis]) - b[axis]));
    return static_cast<std::int32_t>(sum);
}

struct Integers {
    std::vector<Atom> atoms;
    Atom lowest, highest;
    int small;  // index of the smallest size that holds the closest two neighbours
};

// Nearest integers, in the float32 arithmetic of xdrfile.
Integers to_integers(const float* positions, std::int64_t n_atoms, float precision) {
    constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
    Integers out{std::vector<Atom>(n_atoms), {most, most, most}, {~most, ~most, ~most}, 0};
    std::int32_t closest = most;
    for (std::int64_t i = 0; i < n_atoms; ++i) {
        for (int axis = 0; axis < 3; ++axis) {
            const float value = positions[3 * i + axis];
            const float scaled = value * precision;
            const auto rounded = static_cast<float>(scaled + (value >= 0 ? 0.5 : -0.5));
            if (!(std::fabs(rounded) < INTEGER_LIMIT))
                throw std::invalid_argument("atom " + std::to_string(i) + " is at " +
                                            std::to_string(value) + " nm");
            const auto integer = static_cast<std::int32_t>(rounded);
            out.atoms[i][axis] = integer;
            out.lowest[axis] = std::min(out.lowest[axis], integer);
            out.highest[axis] = std::max(out.highest[axis], integer);
        }
        if (i > 0) closest = std::min(closest, path_distance(out.atoms[i - 1], out.atoms[i]));
    }
    for (int axis = 0; axis < 3; ++axis)
        if (float(out.highest[axis]) - float(out.lowest[axis]) >= INTEGER_LIMIT)
            throw std::invalid_argument("they span more than 31 bits");
    out.small = FIRST_SMALL;
    while (out.small < LAST_SMALL && SMALL_SIZES[out.small] < closest) ++out.small;
    return out;
}

// Packs all atoms; swaps the first two of each group that has a run, in place.
BitStream pack(Integers& integers) {
    std::vector<Atom>& atoms = integers.atoms;
    const auto n_atoms = static_cast<std::int64_t>(atoms.size());
    const Atom& lowest = integers.lowest;
    std::uint32_t sizes[3];
    for (int axis = 0; axis < 3; ++axis)
        sizes[axis] = std::uint32_t(integers.highest[axis]) - std::uint32_t(lowest[axis]) + 1;
    const bool split = std::max({sizes[0], sizes[1], sizes[2]}) > LARGEST_JOINT_SIZE;
    const int whole_bits = product_bits(sizes);

    int small = integers.small;
    const int largest = std::min(small + 8, LAST_SMALL);
    const int smallest = largest - 8;
    const std::int32_t reach = SMALL_SIZES[largest] / 2;
    int last_run = -1;
    Atom before{};
    BitStream bits(atoms.size());
    for (std::int64_t i = 0; i < n_atoms;) {
        const std::int32_t half = SMALL_SIZES[small] / 2;
        const std::int32_t half_below = SMALL_SIZES[small - 1] / 2;
        int change = 0;
        if (small < largest && i > 0 && within(atoms[i], before, reach))
            change = 1;
        else if (small > smallest)
            change = -1;
        bool runs = i + 1 < n_atoms && within(atoms[i], atoms[i + 1], half);
        if (runs) std::swap(atoms[i], atoms[i + 1]);
        if (!runs && change < 0) change = 0;

        std::uint32_t whole[3];
        for (int axis = 0; axis < 3; ++axis)
            whole[axis] = std::uint32_t(atoms[i][axis]) - std::uint32_t(lowest[axis]);
        if (split) {
            for (int axis = 0; axis < 3; ++axis) bits.put(whole[axis], bit_length(sizes[axis]));
        } else {
            bits.put_number((Wide(whole[0]) * sizes[1] + whole[1]) * sizes[2] + whole[2],
                            whole_bits);
        }
        before = atoms[i++];

        Atom differences[MAX_RUN];
        int run = 0;
        for (; runs && run < MAX_RUN; ++i) {
            if (change < 0 &&
                squared_distance(atoms[i], before) >=
                    static_cast<std::int32_t>(std::uint32_t(half_below) * std::uint32_t(half_below)))
                change = 0;
            for (int axis = 0; axis < 3; ++axis)
                differences[run][axis] = atoms[i][axis] - before[axis] + half;
            ++run;
            before = atoms[i];
            runs = i + 1 < n_atoms && within(atoms[i + 1], before, half);
        }
        if (run != last_run || change != 0) {
            bits.put(32 + 3 * run + change + 1, 6);
            last_run = run;
        } else {
            bits.put(0, 1);
        }
        const Wide size = SMALL_SIZES[small];
        for (int k = 0; k < run; ++k) {
            const Atom& d = differences[k];
            bits.put_number((Wide(d[0]) * size + d[1]) * size + d[2], small);
        }
        small += change;
    }
    return bits;
}

class Output {
  public:
    explicit Output(std::string& out) : out_(out) {}
    void put(std::int32_t value) {
        std::uint8_t raw[4];
        store_be32(raw, static_cast<std::uint32_t>(value));
        out_.append(reinterpret_cast<const char*>(raw), sizeof raw);
    }
    void put(float value) {
        std::uint8_t raw[4];
        store_float(raw, value);
        out_.append(reinterpret_cast<const char*>(raw), sizeof raw);
    }

  private:
    std::string& out_;
};

}  // namespace

void encode_frame(const float* positions, std::int64_t n_atoms, const float* vectors_nm, float time,
                  std::int32_t step, float precision, std::string& out) {
    Output to(out);
    const auto n = static_cast<std::int32_t>(n_atoms);
    to.put(std::int32_t(1995));
    to.put(n);
    to.put(step);
    to.put(time);
    for (int i = 0; i < 9; ++i) to.put(vectors_nm[i]);
    to.put(n);
    if (n_atoms <= UNCOMPRESSED_ATOMS) {
        for (std::int64_t i = 0; i < 3 * n_atoms; ++i) to.put(positions[i]);
        return;
    }
    Integers integers = to_integers(positions, n_atoms, precision);
    to.put(precision);
    for (const std::int32_t edge : integers.lowest) to.put(edge);
    for (const std::int32_t edge : integers.highest) to.put(edge);
    to.put(std::int32_t(integers.small));
    const BitStream bits = pack(integers);
    to.put(static_cast<std::int32_t>(bits.nbytes()));
    out.append(reinterpret_cast<const char*>(bits.data()), bits.nbytes());
    out.append((4 - bits.nbytes() % 4) % 4, '\0');
}

}  // namespace mdio::xtc

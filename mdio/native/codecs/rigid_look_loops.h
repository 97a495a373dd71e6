// Which atom before it each atom is best told from, and how: included as rigid_part_loops.h is. Nothing
// here has to be exact, since any answer can be encoded; but it is the same on all processors.
#include <algorithm>

#include "rigid_learn.h"
#include "rigid_math.h"

namespace mdio::rigid {
namespace {

constexpr int64_t SOME = 192;        // atoms, whose numbers stay in the first-level cache
constexpr int64_t FIRST_PAIRS = 2;   // that decide which parents the others are asked about
constexpr float HOPE = 1.5f;         // bits by which more frames may make a parent better
constexpr float RIGID = 0.4f;         // variance of a length whose ends have been rounded: 1/6
constexpr float RIGID_OF_FEW = 0.5f; // the same, of fewer pairs than there are
constexpr float MAYBE_RIGID = 1.0f;  // the same, of the first pairs
constexpr float CHANCE = 2.0f;       // bits that one of many parents may gain in few frames
constexpr uint32_t ALL = (2u << BACK) - 2;  // parents that may be tried, a bit each
constexpr int64_t ANEW = 8;         // runs of SOME atoms, of which the first tries all parents; twice as
constexpr int64_t SELDOM = 64;      // many each time they turn out to be the same, up to these
constexpr int64_t FEW_USES = 6;     // of a parent by those: the others do without it
constexpr int64_t MOST_RARE = 8;    // uses of all such parents, of which the others do without them
constexpr float NEVER = 1e9f;
constexpr float NOWHERE = 1e12f;     // where atoms before the first are

// Some atoms, and those that may be their parents: from the first of them, in float32.
struct Places {
    alignas(64) float at[MOST_PAIRS][3][BACK + SOME];
    alignas(64) float moved[MOST_PAIRS][3][BACK + SOME];
};

MDIO_LANES_TARGET
void take(const Pairs& pairs, int64_t n_pairs, int64_t begin, Places& places) {
    const int64_t n = std::min(SOME, pairs.n_atoms - begin), n_before = begin ? BACK : 0;
    for (int64_t k = 0; k < n_pairs; ++k) {
        const int32_t* now = pairs.now[k] + 3 * (begin - n_before);
        const int32_t* before = pairs.before[k] + 3 * (begin - n_before);
        const uint32_t x = uint32_t(now[0]), y = uint32_t(now[1]), z = uint32_t(now[2]);
        auto *at = places.at[k], *moved = places.moved[k];
        for (int axis = 0; begin == 0 && axis < 3; ++axis) {
            std::fill_n(at[axis], BACK, NOWHERE);
            std::fill_n(moved[axis], BACK, NOWHERE);
        }
        for (int64_t i = 0; i < n + n_before; ++i) {
            const int64_t to = BACK - n_before + i;
            at[0][to] = float(int32_t(uint32_t(now[3 * i]) - x));
            at[1][to] = float(int32_t(uint32_t(now[3 * i + 1]) - y));
            at[2][to] = float(int32_t(uint32_t(now[3 * i + 2]) - z));
            moved[0][to] = float(int32_t(uint32_t(now[3 * i]) - uint32_t(before[3 * i])));
            moved[1][to] = float(int32_t(uint32_t(now[3 * i + 1]) - uint32_t(before[3 * i + 1])));
            moved[2][to] = float(int32_t(uint32_t(now[3 * i + 2]) - uint32_t(before[3 * i + 2])));
        }
        for (int axis = 0; axis < 3; ++axis) {
            std::fill(at[axis] + BACK + n, at[axis] + BACK + SOME, 0.0f);
            std::fill(moved[axis] + BACK + n, moved[axis] + BACK + SOME, 0.0f);
        }
    }
}

// log2_of, of many; sums of it are of its bits, and may wrap around.
MDIO_INLINE Ints bits_of(const Floats& x) { return Ints(x); }
MDIO_INLINE Floats log2_from(const Ints& bits, int64_t n) {
    const Ints sum = Ints(Sizes(bits) - uint32_t(n) * (127u << 23));
    return floats(sum) * (1.0f / (1 << 23) / float(n));
}

// Bits of three numbers, from the mean logarithm of the sum of their sizes: unlike their mean, it
// is hardly moved by the few frames in which atoms leave the box on one side and return on another.
MDIO_INLINE Floats bits_of_three(const Floats& mean_log) { return 3.0f * mean_log + 2.6f; }

MDIO_INLINE bool any(const Ints& x) {
    uint64_t parts[LANES / 2], all = 0;
    std::memcpy(parts, &x, sizeof x);
    for (const uint64_t part : parts) all |= part;
    return all != 0;
}

// Of an atom and one before it.
struct Pair {
    Ints moved{}, apart{};          // logarithms
    Floats first{}, off{}, square{};  // square of the length; how far others are off, and the squares of that

    MDIO_INLINE void add(const Places& p, int64_t k, int64_t i, int64_t back) {
        const auto less = [&](const float* of) __attribute__((always_inline)) {
            return load(of + i) - load(of + i - back);
        };
        const Floats ux = less(p.at[k][0]), uy = less(p.at[k][1]), uz = less(p.at[k][2]);
        const Floats vx = less(p.moved[k][0]), vy = less(p.moved[k][1]), vz = less(p.moved[k][2]);
        moved = plus(moved, bits_of(magnitude(vx) + magnitude(vy) + magnitude(vz) + 0.7f));
        apart = plus(apart, bits_of(magnitude(ux) + magnitude(uy) + magnitude(uz) + 0.7f));
        const Floats now = ux * ux + uy * uy + uz * uz;
        const Floats px = ux - vx, py = uy - vy, pz = uz - vz;
        const Floats before = px * px + py * py + pz * pz;
        if (k == 0) first = now;
        const Floats a = now - first, b = before - first;
        off += a + b;
        square += a * a + b * b;
    }
};

// What some pairs make of it.
struct Guess {
    Floats cost, size, length, variance, spread;
    Ints kind;

    MDIO_INLINE Guess(const Pair& pair, int64_t n) {
        const Floats moved = log2_from(pair.moved, n), apart = log2_from(pair.apart, n);
        const float share = 0.5f / float(n);
        const Floats mean_off = pair.off * share, mean = positive(pair.first + mean_off);
        length = root(mean);
        variance = (pair.square * share - mean_off * mean_off) * 0.25f / (mean + 1.0f);
        const Floats least = Floats{} + 0.15f;
        spread = root(variance > least ? variance : least);
        const Floats in_time = bits_of_three(moved), here = bits_of_three(apart);
        // A bond that turns far cannot be told by its length and two numbers.
        const Floats far = positive(moved - log2_from(bits_of(length + 1.0f), 1) + 0.5f);
        const Floats told = in_time * (2.0f / 3.0f) + log2_from(bits_of(spread * 1.35f), 1) + 2.0f + 3.0f * far;
        const Floats swing = length > LONGEST ? Floats{} + NEVER : told;
        variance = length < LONGEST ? variance : Floats{} + NEVER;
        cost = here < in_time ? here : in_time;
        kind = here < in_time ? Ints{} + int(FREE) : Ints{} + int(TIME);
        size = here < in_time ? apart : moved;
        kind = swing < cost ? Ints{} + int(SWING) : kind;
        size = swing < cost ? moved : size;
        cost = swing < cost ? swing : cost;
    }
};

// `tried`: a bit for each atom before these.
MDIO_INLINE void look_at(const Places& p, int64_t n, float most_variance, int64_t at, uint32_t tried, Best& best,
                         int64_t to) {
    const int64_t i = BACK + at, first_n = std::min(n, FIRST_PAIRS);
    Ints sum{};
    for (int64_t k = 0; k < n; ++k)
        sum = plus(sum, bits_of(magnitude(load(p.moved[k][0] + i)) + magnitude(load(p.moved[k][1] + i)) +
                                magnitude(load(p.moved[k][2] + i)) + 0.7f));
    Floats its_size = log2_from(sum, n), cost = bits_of_three(its_size) - CHANCE;
    Floats spread = Floats{} + 1.0f, length{}, rigid_length = Floats{} + LONGEST;
    Ints kind = Ints{} + int(TIME), backs{}, rigid_back{}, rigid{};
    for (int32_t back = 1; back <= int32_t(BACK); ++back) {
        if (!(tried >> back & 1)) continue;
        Pair pair;
        for (int64_t k = 0; k < first_n; ++k) pair.add(p, k, i, back);
        Floats hope{};
        if (first_n < n && tried == ALL) {  // of few, most are worth it
            const Guess guess(pair, first_n);
            hope = guess.variance < MAYBE_RIGID ? Floats{} : guess.cost;
            if (!any(hope < cost + HOPE ? Ints{} + 1 : Ints{})) continue;
            hope = hope < cost + HOPE ? Floats{} : Floats{} + NEVER;
        }
        for (int64_t k = first_n; k < n; ++k) pair.add(p, k, i, back);
        const Guess guess(pair, n);
        const Floats found = guess.cost + hope, limit = cost - 0.1f;
        backs = found < limit ? Ints{} + back : backs;
        kind = found < limit ? guess.kind : kind;
        spread = found < limit ? guess.spread : spread;
        length = found < limit ? guess.length : length;
        its_size = found < limit ? guess.size : its_size;
        cost = found < limit ? found : cost;
        const Floats variance = guess.variance + hope;
        rigid |= variance < most_variance ? Ints{} + (1 << back) : Ints{};
        const Floats near = variance < most_variance ? guess.length : Floats{} + LONGEST;
        rigid_back = near < rigid_length ? Ints{} + back : rigid_back;
        rigid_length = near < rigid_length ? near : rigid_length;
    }
    store(backs == 0 ? cost + CHANCE : cost, best.cost.data() + to);
    store(its_size, best.size.data() + to);
    store(spread, best.spread.data() + to);
    store(length, best.length.data() + to);
    store(rigid_length, best.rigid_length.data() + to);
    store(backs, best.back.data() + to);
    store(kind, best.kind.data() + to);
    store(rigid_back, best.rigid_back.data() + to);
    store(rigid, best.rigid.data() + to);
}

// Which atoms before them some atoms have use for: in solvent it is the same few.
inline uint32_t used(const Best& best, int64_t begin, int64_t end) {
    int64_t counts[BACK + 1] = {}, n_rare = 0;
    for (int64_t i = begin; i < end; ++i) ++counts[best.back[size_t(i)]], ++counts[best.rigid_back[size_t(i)]];
    uint32_t all = 0;
    for (int64_t back = 1; back <= BACK; ++back) {
        const bool is_rare = counts[back] < FEW_USES;
        all |= uint32_t(!is_rare) << back, n_rare += is_rare ? counts[back] : 0;
    }
    return n_rare > MOST_RARE ? ALL : all;
}

MDIO_LANES_TARGET
void look(const Pairs& pairs, Best& best) {
    Places places;
    best.fit(size_t((pairs.n_atoms + SOME - 1) / SOME * SOME));
    uint32_t tried = ALL, last = ALL;
    int64_t every = ANEW, until = 0;  // runs
    for (int64_t begin = 0; begin < pairs.n_atoms; begin += SOME) {
        const int64_t n = std::min(SOME, pairs.n_atoms - begin);
        if (begin / SOME == until) tried = ALL;
        const int64_t n_pairs = tried == ALL ? pairs.n : pairs.n_of_solvent;
        const float most_variance = n_pairs < pairs.n ? RIGID_OF_FEW : RIGID;
        take(pairs, n_pairs, begin, places);
        for (int64_t at = 0; at < n; at += LANES) look_at(places, n_pairs, most_variance, at, tried, best, begin + at);
        if (tried != ALL) continue;
        tried = used(best, begin, begin + n);
        every = tried == last ? std::min(2 * every, SELDOM) : ANEW;
        last = tried, until = begin / SOME + every;
    }
}

}  // namespace
}  // namespace mdio::rigid

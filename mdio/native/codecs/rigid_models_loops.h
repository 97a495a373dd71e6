// The cheapest parent and kind of each atom: included as rigid_vectors_loops.h is. Nothing here has to be
// exact, since any choice can be encoded; but the choice is the same on all processors.
#include <algorithm>

#include "rigid_models.h"
#include "rigid_math.h"

namespace mdio::rigid {
namespace {

constexpr int64_t RUN = 192;  // atoms, whose numbers stay in the first-level cache
constexpr int32_t NEAR_OFFSET = 3;  // farther parents are tried only where they are much nearer than those before
constexpr float MUCH_NEARER = 0.6f;  // of squared distances: a bond's is less than half of the next but one's
constexpr int64_t MANY_FRAMES = 8;  // with fewer, parents that are nearer by little are tried, too: some pay
constexpr float MAX_RIGID_VARIANCE = 0.4f;  // variance of a length whose ends have been rounded: 1/6
constexpr float MAX_RIGID_VARIANCE_OF_FEW = 0.5f; // the same, of fewer pairs than there are
constexpr float CHANCE_BITS = 2.0f;  // bits that one of many parents may gain in few frames
constexpr uint32_t ALL_OFFSETS = (2u << MAX_OFFSET) - 2;  // parents that may be tried, a bit each
constexpr int64_t MIN_RUNS = 8;  // runs of atoms, of the first of which all parents are tried; the number
constexpr int64_t MAX_RUNS = 64;  // doubles while the useful parents stay the same, up to MAX_RUNS
constexpr int64_t MIN_USES = 6;  // of a parent in a run; rarer ones are not tried in the next
constexpr int64_t MAX_RARE_USES = 8;  // of all rare parents; if there are more, all parents are tried again
constexpr int64_t SAME = REPEAT / 2;  // atoms between two that are alike in solvent
constexpr int64_t MAX_OTHERS = 3;  // groups of a run that do not share models; if there are more, none does
constexpr float MIN_SIZE = 5.3f;  // of atoms whose models others may have: slower ones keep their speeds
constexpr float MAX_ROUNDED = 2.0f;  // by how much rounding may change a rigid length
constexpr float NEVER_BITS = 1e9f;
constexpr float OUTSIDE = 1e11f;  // coordinate of the missing atoms before the first; the sign alternates

// Coordinates of a run of atoms and of their possible parents in some frames, relative to the first atom.
struct Places {
    int64_t n_frames = 0;
    bool follows[2 * MAX_PAIRS];  // whether a frame and the one before it here are a pair
    alignas(64) float at[2 * MAX_PAIRS][3][MAX_OFFSET + RUN];

    // Of atoms from those `offset` before them.
    MDIO_INLINE Floats squared_distance(int64_t f, int64_t i, int64_t offset) const {
        const auto less = [&](const float* of) __attribute__((always_inline)) {
            return load(of + i) - load(of + i - offset);
        };
        const Floats x = less(at[f][0]), y = less(at[f][1]), z = less(at[f][2]);
        return x * x + y * y + z * z;
    }
};

// Adds a frame to the places of atoms begin:end. `first`: the first of them in some frame.
MDIO_LANES_TARGET
void add_frame(const int32_t* row, const int32_t* first, int64_t begin, int64_t end, bool follows, Places& places) {
    const uint32_t x = uint32_t(first[0]), y = uint32_t(first[1]), z = uint32_t(first[2]);
    auto* at = places.at[places.n_frames];
    places.follows[places.n_frames++] = follows;
    for (int axis = 0; begin == 0 && axis < 3; ++axis)
        std::fill_n(at[axis], MAX_OFFSET, places.n_frames % 2 ? OUTSIDE : -OUTSIDE);
    const int64_t n_before = begin ? MAX_OFFSET : 0, n = end - begin;
    const int32_t* from = row + 3 * (begin - n_before);
    for (int64_t to = MAX_OFFSET - n_before; to < MAX_OFFSET + n; ++to, from += 3) {
        at[0][to] = float(int32_t(uint32_t(from[0]) - x));
        at[1][to] = float(int32_t(uint32_t(from[1]) - y));
        at[2][to] = float(int32_t(uint32_t(from[2]) - z));
    }
    for (int axis = 0; axis < 3; ++axis) std::fill(at[axis] + MAX_OFFSET + n, at[axis] + MAX_OFFSET + RUN, 0.0f);
}

// Fills the places of a run with pairs of frames, of which some share a frame.
inline void load_pairs(const FramePairs& pairs, int64_t n_pairs, int64_t begin, Places& places) {
    const int64_t end = std::min(begin + RUN, pairs.n_atoms);
    const int32_t* first = pairs.now[0] + 3 * begin;
    places.n_frames = 0;
    for (int64_t k = 0; k < n_pairs; ++k) {
        if (k == 0 || pairs.before[k] != pairs.now[k - 1])
            add_frame(pairs.before[k], first, begin, end, false, places);
        add_frame(pairs.now[k], first, begin, end, true, places);
    }
}

// log2_of for many: the sum of bits_of is of integers, which may wrap around.
MDIO_INLINE Ints bits_of(const Floats& x) { return Ints(x); }
MDIO_INLINE Floats log2_from(const Ints& bits, int64_t n) {
    const Ints sum = Ints(Sizes(bits) - uint32_t(n) * (127u << 23));
    return floats(sum) * (1.0f / (1 << 23) / float(n));
}

// Bits of three numbers, from the mean logarithm of the sum of their sizes: unlike their mean, it
// is hardly moved by the few frames in which atoms leave the box on one side and return on another.
MDIO_INLINE Floats bits_of_three(const Floats& mean_log) { return 3.0f * mean_log + 2.6f; }

MDIO_INLINE bool any_lane(const Ints& x) {
    uint64_t parts[LANES / 2], all = 0;
    std::memcpy(parts, &x, sizeof x);
    for (const uint64_t part : parts) all |= part;
    return all != 0;
}

// Sums over frames for atoms and their possible parents.
struct Sums {
    Ints moved{}, apart{};  // logarithms, of each pair of frames
    Floats first, off{}, square{};  // first squared length; sums of deviations from it and of their squares

    MDIO_INLINE Sums(const Places& p, int64_t i, int64_t offset) {
        Floats x{}, y{}, z{};
        for (int64_t f = 0; f < p.n_frames; ++f) {
            const auto less = [&](const float* of) __attribute__((always_inline)) {
                return load(of + i) - load(of + i - offset);
            };
            const Floats ux = less(p.at[f][0]), uy = less(p.at[f][1]), uz = less(p.at[f][2]);
            const Floats now = ux * ux + uy * uy + uz * uz;
            if (f == 0) first = now;
            off += now - first;
            square += (now - first) * (now - first);
            if (p.follows[f]) {
                moved = plus(moved, bits_of(magnitude(ux - x) + magnitude(uy - y) + magnitude(uz - z) + 0.7f));
                apart = plus(apart, bits_of(magnitude(ux) + magnitude(uy) + magnitude(uz) + 0.7f));
            }
            x = ux, y = uy, z = uz;
        }
    }
};

// The cheapest kind for that parent, from some frames and `n` pairs of them.
struct Model {
    Floats cost, size, length, variance, spread;
    Ints kind;

    MDIO_INLINE Model(const Sums& sums, int64_t n_frames, int64_t n) {
        const Floats moved = log2_from(sums.moved, n), apart = log2_from(sums.apart, n);
        const float share = 1.0f / float(n_frames);
        const Floats mean_off = sums.off * share, mean = positive(sums.first + mean_off);
        length = root(mean);
        variance = (sums.square * share - mean_off * mean_off) * 0.25f / (mean + 1.0f);
        const Floats floor = Floats{} + 0.15f;
        spread = root(variance > floor ? variance : floor);
        const Floats in_time = bits_of_three(moved), in_space = bits_of_three(apart);
        // The length and two numbers do not determine a bond that turns far.
        const Floats far = positive(moved - log2_from(bits_of(length + 1.0f), 1) + 0.5f);
        const Floats swing_bits = in_time * (2.0f / 3.0f) + log2_from(bits_of(spread * 1.35f), 1) + 2.0f + 3.0f * far;
        const Floats swing = length > MAX_RIGID_LENGTH ? Floats{} + NEVER_BITS : swing_bits;
        variance = length < MAX_RIGID_LENGTH ? variance : Floats{} + NEVER_BITS;
        cost = in_space < in_time ? in_space : in_time;
        kind = in_space < in_time ? Ints{} + int(FREE) : Ints{} + int(TIME);
        size = in_space < in_time ? apart : moved;
        kind = swing < cost ? Ints{} + int(SWING) : kind;
        size = swing < cost ? moved : size;
        cost = swing < cost ? swing : cost;
    }
};

// `offsets_tried`: bit k for the atom k before each.
MDIO_INLINE void model_atoms(const Places& p, int64_t n, float max_variance, int64_t at, uint32_t offsets_tried,
                             AtomModels& models, int64_t to) {
    const int64_t i = MAX_OFFSET + at;
    Ints sum{};
    for (int64_t f = 1; f < p.n_frames; ++f) {
        const auto less = [&](int axis) __attribute__((always_inline)) {
            return magnitude(load(p.at[f][axis] + i) - load(p.at[f - 1][axis] + i));
        };
        if (p.follows[f]) sum = plus(sum, bits_of(less(0) + less(1) + less(2) + 0.7f));
    }
    Floats size = log2_from(sum, n), cost = bits_of_three(size) - CHANCE_BITS;
    Floats spread = Floats{} + 1.0f, length{}, rigid_length = Floats{} + MAX_RIGID_LENGTH;
    Floats nearest = Floats{} + OUTSIDE * OUTSIDE;
    Ints kind = Ints{} + int(TIME), offsets{}, rigid_offset{}, rigid{};
    for (int32_t offset = 1; offset <= int32_t(MAX_OFFSET); ++offset) {
        if (!(offsets_tried >> offset & 1)) continue;
        Floats penalty{};
        if (offsets_tried == ALL_OFFSETS) {
            const float share = p.n_frames < MANY_FRAMES ? 1.0f : MUCH_NEARER;
            const Floats square = p.squared_distance(0, i, offset), near = nearest * share;
            nearest = smaller(nearest, square);
            if (offset > NEAR_OFFSET) {
                if (!any_lane(square < near ? Ints{} + 1 : Ints{})) continue;
                penalty = square < near ? Floats{} : Floats{} + NEVER_BITS;
            }
        }
        const Model model(Sums(p, i, offset), p.n_frames, n);
        const Floats found = model.cost + penalty, limit = cost - 0.1f;
        offsets = found < limit ? Ints{} + offset : offsets;
        kind = found < limit ? model.kind : kind;
        spread = found < limit ? model.spread : spread;
        length = found < limit ? model.length : length;
        size = found < limit ? model.size : size;
        cost = found < limit ? found : cost;
        const Floats variance = model.variance + penalty;
        rigid |= variance < max_variance ? Ints{} + (1 << offset) : Ints{};
        const Floats near = variance < max_variance ? model.length : Floats{} + MAX_RIGID_LENGTH;
        rigid_offset = near < rigid_length ? Ints{} + offset : rigid_offset;
        rigid_length = near < rigid_length ? near : rigid_length;
    }
    store(offsets == 0 ? cost + CHANCE_BITS : cost, models.cost.data() + to);
    store(size, models.size.data() + to);
    store(spread, models.spread.data() + to);
    store(length, models.length.data() + to);
    store(rigid_length, models.rigid_length.data() + to);
    store(offsets, models.offset.data() + to);
    store(kind, models.kind.data() + to);
    store(rigid_offset, models.rigid_offset.data() + to);
    store(rigid, models.rigid.data() + to);
}

// The offsets that are used as parents by atoms begin:end; in solvent these are few.
inline uint32_t useful_offsets(const AtomModels& models, int64_t begin, int64_t end) {
    int64_t counts[MAX_OFFSET + 1] = {}, rigid_counts[MAX_OFFSET + 1] = {}, n_rare = 0;
    for (int64_t i = begin; i < end; ++i)
        ++counts[models.offset[size_t(i)]], ++rigid_counts[models.rigid_offset[size_t(i)]];
    uint32_t all = 0;
    for (int64_t offset = 1; offset <= MAX_OFFSET; ++offset) {
        const int64_t n = counts[offset] + rigid_counts[offset];
        const bool is_rare = n < MIN_USES;
        all |= uint32_t(!is_rare) << offset, n_rare += is_rare ? n : 0;
    }
    return n_rare > MAX_RARE_USES ? ALL_OFFSETS : all;
}

// Whether a group of a run has the rigid lengths of the group at `from`, in some frames.
MDIO_INLINE bool has_lengths(const Places& p, int64_t at, uint32_t offsets_tried,
                             const AtomModels& models, int64_t from) {
    Ints differ{};
    for (int64_t lane = 0; lane < GROUP; lane += LANES) {
        const int64_t i = MAX_OFFSET + at + lane;
        const Ints rigid_offset = load(models.rigid_offset.data() + from + lane);
        const Floats length = load(models.rigid_length.data() + from + lane);
        Ints are_off = rigid_offset;  // of atoms whose parent is not among those tried, too
        for (int32_t offset = 1; offset <= int32_t(MAX_OFFSET); ++offset) {
            if (!(offsets_tried >> offset & 1)) continue;
            Ints is_off{};
            for (int64_t f = 0; f < p.n_frames; ++f) {
                const Floats off = magnitude(root(p.squared_distance(f, i, offset)) - length);
                is_off |= off < MAX_ROUNDED ? Ints{} : Ints{} + 1;
            }
            are_off = rigid_offset == offset ? is_off : are_off;
        }
        differ |= are_off;
    }
    return !any_lane(differ);
}

// Whether the atoms of a group are modelled as those of molecules before, most of them by rigid lengths.
inline bool is_common(const AtomModels& models, int64_t begin, uint32_t offsets_tried) {
    int64_t n_others = 0;
    float sizes = 0;
    for (int64_t i = begin; begin >= SAME && i < begin + GROUP; ++i) {
        const size_t at = models.of(size_t(i)), other = models.of(size_t(i - SAME));
        const int32_t offset = models.rigid_offset[at];
        if (models.rigid[at] != models.rigid[other] || models.rigid_offset[other] != offset) return false;
        if (offset == 0 ? models.offset[at] != 0 : !(offsets_tried >> offset & 1)) return false;
        n_others += offset == 0, sizes += offset == 0 ? models.size[at] : 0.0f;
    }
    return begin >= SAME && 2 * n_others < GROUP && sizes >= MIN_SIZE * float(n_others);
}

// Lets groups of a run share earlier models where they can, and returns how many do not.
MDIO_LANES_TARGET
int64_t share_models(const FramePairs& pairs, int64_t begin, int64_t n, uint32_t offsets_tried, Places& places,
                     AtomModels& models) {
    int64_t n_others = 0;
    for (int64_t at = 0; at < n; at += GROUP) {
        const size_t from = models.of(size_t(begin + at - REPEAT));
        const bool may_share = at + GROUP <= n && models.are_common[from / GROUP];
        models.shared[size_t(begin + at) / GROUP] = may_share ? from : size_t(begin + at);
        n_others += !may_share;
    }
    if (n_others > MAX_OTHERS) return n_others;
    places.n_frames = 0;
    for (const int32_t* row : {pairs.now[0], pairs.now[pairs.n - 1]})  // far from each other
        add_frame(row, row + 3 * begin, begin, begin + n, false, places);
    for (int64_t at = 0; at < n; at += GROUP) {
        size_t& from = models.shared[size_t(begin + at) / GROUP];
        const bool is_own = from == size_t(begin + at);
        if (is_own || has_lengths(places, at, offsets_tried, models, int64_t(from))) continue;
        from = size_t(begin + at);
        ++n_others;
    }
    return n_others;
}

MDIO_LANES_TARGET
void find_models(const FramePairs& pairs, AtomModels& models) {
    Places places;
    models.fit(size_t((pairs.n_atoms + RUN - 1) / RUN * RUN));
    uint32_t offsets_tried = ALL_OFFSETS, last = ALL_OFFSETS;
    int64_t every = MIN_RUNS, until = 0;  // runs
    for (int64_t begin = 0; begin < pairs.n_atoms; begin += RUN) {
        const int64_t n = std::min(RUN, pairs.n_atoms - begin);
        int64_t n_others = MAX_OTHERS + 1;
        if (offsets_tried != ALL_OFFSETS && begin >= REPEAT)
            n_others = share_models(pairs, begin, n, offsets_tried, places, models);
        if (n_others == 0) continue;
        if (n_others > MAX_OTHERS) {
            if (begin / RUN >= until) offsets_tried = ALL_OFFSETS;
            for (int64_t at = begin; at < begin + RUN; at += GROUP) models.shared[size_t(at) / GROUP] = size_t(at);
        }
        const int64_t n_pairs = offsets_tried == ALL_OFFSETS ? pairs.n : pairs.n_for_solvent;
        const float max_variance = n_pairs < pairs.n ? MAX_RIGID_VARIANCE_OF_FEW : MAX_RIGID_VARIANCE;
        load_pairs(pairs, n_pairs, begin, places);
        for (int64_t at = 0; at < n; at += LANES)
            if (models.has_own(size_t(begin + at)))
                model_atoms(places, n_pairs, max_variance, at, offsets_tried, models, begin + at);
        if (offsets_tried == ALL_OFFSETS) {
            offsets_tried = useful_offsets(models, begin, begin + n);
            every = offsets_tried == last ? std::min(2 * every, MAX_RUNS) : MIN_RUNS;
            last = offsets_tried, until = begin / RUN + every;
        }
        for (int64_t at = begin; at < begin + n; at += GROUP)
            if (models.has_own(size_t(at)))
                models.are_common[size_t(at) / GROUP] = is_common(models, at, offsets_tried);
    }
}

}  // namespace
}  // namespace mdio::rigid

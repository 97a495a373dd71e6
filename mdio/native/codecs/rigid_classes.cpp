// The classes of a chunk, from how each of its atoms is best told: few enough to pay for their
// tables, and all atoms of a length or a triangle alike.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "rigid.h"
#include "rigid_part.h"

namespace mdio::rigid {
namespace {

constexpr int64_t FEW = 64;         // atoms: smaller groups get no length of their own
constexpr int64_t SYMBOLS = 6000;    // of a stream, that pay for a class's frequencies
constexpr float ALIKE = 1.2f;        // octaves between quartiles
constexpr int PER_UNIT = 4;         // bins of lengths
constexpr int NEAR = 3;             // bins that go with a peak
constexpr int64_t ENOUGH = 5000;    // distances, to know their mean
constexpr size_t MANY = 10000;      // atoms, to know their quartiles

// Groups of atoms with the same rigid length to the atom as far before them: bins of the length.
class Groups {
  public:
    Groups(const Best& best, size_t n_atoms, int64_t few) : of_bin_(size_t(BACK + 1)) {
        std::vector<std::vector<int32_t>> counts(size_t(BACK + 1));
        for (size_t i = 0; i < n_atoms; ++i) {
            if (!best.rigid_back[i]) continue;
            const auto back = size_t(best.rigid_back[i]);
            if (counts[back].empty()) counts[back].resize(BINS);
            ++counts[back][size_t(bin_of(best.rigid_length[i]))];
        }
        for (size_t back = 1; back <= size_t(BACK); ++back)
            if (std::accumulate(counts[back].begin(), counts[back].end(), int64_t(0)) >= few)
                find_peaks(counts[back], few, of_bin_[back]);
    }
    // Zero: none.
    int find(int32_t back, float length) const {
        const auto& bins = of_bin_[size_t(back)];
        return bins.empty() ? 0 : bins[size_t(bin_of(length))];
    }
    static constexpr size_t BINS = size_t(PER_UNIT * LONGEST) + 2 * NEAR + 2;

  private:
    static int bin_of(float length) { return int(length * PER_UNIT) + NEAR; }
    // The most common lengths first, until there are few of each.
    static void find_peaks(std::vector<int32_t>& bins, int64_t few, std::vector<int16_t>& groups) {
        groups.resize(BINS);
        auto last = int64_t(BINS) - 1;  // that may have some
        while (bins[size_t(last)] == 0) --last;
        last = std::min(last + NEAR, int64_t(BINS) - 1);
        for (;;) {
            int64_t most = 0, peak = 0, sum = 0;
            for (int64_t end = 0; end <= last; ++end) {
                sum += bins[size_t(end)];
                if (sum > most) most = sum, peak = end - NEAR;
                if (end >= 2 * NEAR) sum -= bins[size_t(end - 2 * NEAR)];
            }
            if (most < few) return;
            for (int64_t bin = std::max<int64_t>(peak - NEAR, 0); bin <= peak + NEAR; ++bin) {
                if (bins[size_t(bin)]) groups[size_t(bin)] = int16_t(peak);
                bins[size_t(bin)] = 0;
            }
        }
    }
    std::vector<std::vector<int16_t>> of_bin_;  // of each number of atoms before
};

struct Mean {
    double sum = 0;
    int64_t n = 0;
    void add(double x) { sum += x, ++n; }
    double value() const { return n ? sum / double(n) : 0; }
};

// Of the square of a distance; some atoms of a class are enough.
void add_square(const Pairs& pairs, int64_t i, int64_t j, Mean& mean) {
    if (mean.n >= ENOUGH) return;
    for (int64_t k = 0; k < pairs.n; ++k) {
        double sum = 0;
        for (int64_t axis = 0; axis < 3; ++axis) {
            const double u = double(pairs.now[k][3 * i + axis]) - pairs.now[k][3 * j + axis];
            sum += u * u;
        }
        mean.add(sum);
    }
}

// Kind, and what distinguishes classes of it; sorted as the classes have to be.
using Key = uint64_t;
Key key_of(int kind, int first, int second, int third) {
    const auto part = [](int x) { return uint64_t(x + (1 << 15)); };  // also of what is negative
    return uint64_t(kind) << 48 | part(first) << 32 | part(second) << 16 | uint64_t(third);
}
int kind_of(Key key) { return int(key >> 48); }

// What atoms are told by, in place of a key.
class Keys {
  public:
    std::vector<Key> all;
    std::vector<Mean> squares, others;
    uint16_t number(Key key) {
        uint16_t& last = last_[key * 0x9E3779B97F4A7C15u >> 58];  // mostly it is the one
        if (size_t(last) < all.size() && all[last] == key) return last;
        const auto found = std::find(all.begin(), all.end(), key);
        last = uint16_t(found - all.begin());
        if (found == all.end()) all.push_back(key), squares.emplace_back(), others.emplace_back();
        return last;
    }

  private:
    uint16_t last_[64] = {};
};

struct Choice {
    Keys keys;
    std::vector<uint16_t> numbers;  // of keys
    std::vector<uint8_t> backs, seconds;
};

// The nearest atom before `i` with the same parent, told from it, at a rigid distance.
int64_t second_of(const Best& best, const Choice& choice, int64_t i, int64_t back) {
    for (int64_t b = 1; b < back; ++b) {
        const auto j = size_t(i - b);
        if (!(best.rigid[size_t(i)] >> b & 1) || choice.backs[j] != back - b) continue;
        const int kind = kind_of(choice.keys.all[choice.numbers[j]]);
        if (kind == SWING || kind == SPHERE) return b;
    }
    return 0;
}

float sphere_bits(float length) { return log2_of(12.6f * length * length) + 1.0f; }
float circle_bits(float length) { return log2_of(6.3f * length) + 2.8f; }

// Whether the atoms of each group are told by their length, all or none: few frames tell little of
// each atom.
std::vector<bool> worth(const Best& best, size_t n_atoms, const Groups& groups) {
    std::vector<double> gains(Groups::BINS);
    std::vector<bool> all(Groups::BINS);
    for (size_t i = 0; i < n_atoms; ++i) {
        if (!best.rigid_back[i]) continue;
        const float length = best.rigid_length[i];
        gains[size_t(groups.find(best.rigid_back[i], length))] += best.cost[i] + 1.5 - sphere_bits(length);
    }
    for (size_t group = 1; group < gains.size(); ++group) all[group] = gains[group] > 0;
    return all;
}

// Whether what sizes differ by is no more than chance has them differ in so few frames.
bool alike(const Best& best, size_t n_atoms, int kind) {
    std::vector<float> sizes;
    for (size_t i = 0; i < n_atoms; i += 1 + n_atoms / MANY)
        if (best.kind[i] == kind && !best.rigid[i]) sizes.push_back(best.size[i]);
    if (sizes.empty()) return true;
    const auto quarter = [&](size_t n) { return sizes.begin() + int64_t(sizes.size() * n / 4); };
    std::nth_element(sizes.begin(), quarter(3), sizes.end());
    const float third = *quarter(3);
    std::nth_element(sizes.begin(), quarter(1), quarter(3));  // the others are no smaller
    return third - *quarter(1) < ALIKE;
}

int rounded(float x) { return int(x + 1000.5f) - 1000; }  // of logarithms: std::floor is a call

Choice chosen(const Pairs& pairs, const Best& best, float per_octave, bool by_spread, int64_t few) {
    const auto n_atoms = size_t(pairs.n_atoms);
    const Groups groups(best, n_atoms, few);
    const auto told = worth(best, n_atoms, groups);
    Choice choice;
    choice.seconds.assign(n_atoms, 0);
    choice.backs.resize(n_atoms);
    choice.numbers.resize(n_atoms);
    const bool one_size[] = {alike(best, n_atoms, FREE), alike(best, n_atoms, TIME), false};
    for (size_t i = 0; i < n_atoms; ++i) {
        const auto at = int64_t(i);
        const float length = best.rigid_length[i];
        const int32_t rigid_back = best.rigid_back[i];
        const int group = rigid_back ? groups.find(rigid_back, length) : 0;
        const int64_t second = group ? second_of(best, choice, at, rigid_back) : 0;
        const bool on_circle = second && circle_bits(length) < best.cost[i];
        int32_t back = rigid_back;
        Key key;
        if (on_circle) {
            choice.seconds[i] = uint8_t(second);
            key = key_of(CIRCLE, group, back, int(second));
        } else if (group && told[size_t(group)]) {
            key = key_of(SPHERE, group, back, 0);
        } else {
            const int size = one_size[best.kind[i]] ? 0 : rounded(best.size[i] * per_octave);
            const int spread = by_spread && best.kind[i] == SWING ? rounded(log2_of(best.spread[i])) : 0;
            key = key_of(best.kind[i], spread, size, 0);
            back = best.back[i];
        }
        const uint16_t number = choice.keys.number(key);
        choice.numbers[i] = number;
        choice.backs[i] = uint8_t(back);
        if (on_circle) add_square(pairs, at, at - second, choice.keys.others[number]);
        if (on_circle || kind_of(key) == SPHERE) add_square(pairs, at, at - back, choice.keys.squares[number]);
    }
    return choice;
}

// Numbers of classes, by those of keys; classes of few atoms go with the next of their kind. Fills which
// key each class has.
std::vector<uint8_t> merged(const Choice& choice, int64_t few, std::vector<uint16_t>& classes) {
    const auto& keys = choice.keys.all;
    std::vector<int64_t> counts(keys.size());
    for (const uint16_t number : choice.numbers) ++counts[number];
    std::vector<uint16_t> sorted(keys.size());
    std::iota(sorted.begin(), sorted.end(), uint16_t(0));
    std::sort(sorted.begin(), sorted.end(), [&](uint16_t a, uint16_t b) { return keys[a] < keys[b]; });
    std::vector<uint8_t> numbers(keys.size());
    classes.clear();
    int64_t n = 0;
    for (size_t at = 0; at < sorted.size(); ++at) {
        const int kind = kind_of(keys[sorted[at]]);
        const bool alike = at + 1 < sorted.size() && kind_of(keys[sorted[at + 1]]) == kind;
        n += counts[sorted[at]];
        numbers[sorted[at]] = uint8_t(std::min<size_t>(classes.size(), MOST_CLASSES));
        if (kind < SPHERE && n < few && alike) continue;
        classes.push_back(sorted[at]);
        n = 0;
    }
    return numbers;
}

// Lengths of a SWING's atoms, each in a byte.
void set_lengths(const Best& best, Chunk& chunk) {
    std::vector<std::pair<uint32_t, uint32_t>> ranges(chunk.classes.size(), {UINT32_MAX, 0});
    const auto sixteenths = [&](size_t i) {
        return uint32_t(std::min(best.length[i], 4000.0f) * 16.0f + 0.5f);
    };
    chunk.atoms.lengths.assign(size_t(chunk.n_atoms), 0);
    for (size_t i = 0; i < size_t(chunk.n_atoms); ++i) {
        const uint8_t c = chunk.atoms.classes[i];
        if (chunk.classes[c].kind != SWING) continue;
        ranges[c] = {std::min(ranges[c].first, sixteenths(i)), std::max(ranges[c].second, sixteenths(i))};
    }
    for (size_t c = 0; c < chunk.classes.size(); ++c) {
        if (chunk.classes[c].kind != SWING) continue;
        chunk.classes[c].length = ranges[c].first;
        chunk.classes[c].shift = 0;
        while ((ranges[c].second - ranges[c].first) >> chunk.classes[c].shift > 255) ++chunk.classes[c].shift;
    }
    for (size_t i = 0; i < size_t(chunk.n_atoms); ++i) {
        const Class& c = chunk.classes[chunk.atoms.classes[i]];
        if (c.kind == SWING) chunk.atoms.lengths[i] = uint8_t((sixteenths(i) - c.length) >> c.shift);
    }
}

}  // namespace

Chunk learnt(const Pairs& pairs, int64_t n_frames, Best& best) {
    steps().look(pairs, best);
    const int64_t n_atoms = pairs.n_atoms;
    const bool is_large = n_frames * n_atoms > 100000;
    Choice choice;
    std::vector<uint16_t> classes;
    std::vector<uint8_t> numbers;
    int64_t few = FEW;
    for (float per_octave = 1.0f;; per_octave *= 0.5f, few *= 4) {
        choice = chosen(pairs, best, per_octave, is_large, few);
        numbers = merged(choice, SYMBOLS / n_frames, classes);
        if (int64_t(classes.size()) <= MOST_CLASSES) break;
    }
    Chunk chunk;
    chunk.n_atoms = n_atoms;
    for (const uint16_t key : classes) {
        Class c;
        c.kind = Kind(kind_of(choice.keys.all[key]));
        c.shift = NO_LENGTHS;
        if (c.kind >= SPHERE) c.length = uint32_t(choice.keys.squares[key].value() + 0.5);
        if (c.kind == CIRCLE) c.other = uint32_t(choice.keys.others[key].value() + 0.5);
        chunk.classes.push_back(c);
    }
    chunk.atoms.classes.resize(size_t(n_atoms));
    for (size_t i = 0; i < size_t(n_atoms); ++i) chunk.atoms.classes[i] = numbers[choice.numbers[i]];
    chunk.atoms.backs = std::move(choice.backs);
    chunk.atoms.seconds = std::move(choice.seconds);
    set_lengths(best, chunk);
    chunk.sort();
    return chunk;
}

}  // namespace mdio::rigid

// The classes of a chunk, from how each of its atoms is best told: few enough to pay for their
// tables, and all atoms of a length or a triangle alike.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "rigid.h"
#include "rigid_learn.h"

namespace mdio::rigid {
namespace {

constexpr int64_t FEW = 64;         // atoms: smaller groups get no length of their own
constexpr int64_t SYMBOLS = 6000;    // of a stream, that pay for a class's frequencies
constexpr float ALIKE = 1.2f;        // octaves between quartiles
constexpr int PER_UNIT = 4;         // bins of lengths
constexpr int NEAR = 3;             // bins that go with a peak
constexpr int64_t ENOUGH = 5000;    // distances, to know their mean

// Groups of atoms with the same rigid length to the atom as far before them: bins of the length.
struct Groups {
    std::map<std::pair<int32_t, int>, int> of_bin;

    Groups(const Best& best, int64_t few) {
        std::map<int32_t, std::vector<int32_t>> counts;
        for (size_t i = 0; i < best.cost.size(); ++i) {
            if (!best.rigid_back[i]) continue;
            auto& bins = counts[best.rigid_back[i]];
            bins.resize(size_t(PER_UNIT * LONGEST) + 2 * NEAR + 2);
            ++bins[size_t(bin_of(best.rigid_length[i]))];
        }
        for (auto& [back, bins] : counts)
            for (;;) {
                int64_t most = 0, peak = 0;
                for (int64_t bin = NEAR; bin < int64_t(bins.size()) - NEAR; ++bin) {
                    int64_t sum = 0;
                    for (int64_t near = -NEAR; near <= NEAR; ++near) sum += bins[size_t(bin + near)];
                    if (sum > most) most = sum, peak = bin;
                }
                if (most < few) break;
                for (int64_t near = -NEAR; near <= NEAR; ++near) {
                    if (bins[size_t(peak + near)]) of_bin[{back, int(peak + near)}] = int(peak);
                    bins[size_t(peak + near)] = 0;
                }
            }
    }
    static int bin_of(float length) { return int(length * PER_UNIT) + NEAR; }
    int find(int32_t back, float length) const {
        const auto found = of_bin.find({back, bin_of(length)});
        return found == of_bin.end() ? 0 : found->second;
    }
};

struct Mean {
    double sum = 0;
    int64_t n = 0;
    void add(double x) { sum += x, ++n; }
    double value() const { return n ? sum / double(n) : 0; }
};

// Of the square of a distance; some atoms of a class are enough.
void add_square(const Samples& s, int64_t n_atoms, int64_t i, int64_t j, Mean& mean) {
    if (mean.n >= ENOUGH) return;
    for (int64_t k = 0; k < s.n; ++k) {
        double sum = 0;
        for (const auto& axis : s.at) {
            const double u = double(axis[size_t(k * n_atoms + i)]) - axis[size_t(k * n_atoms + j)];
            sum += u * u;
        }
        mean.add(sum);
    }
}

// Kind, and what distinguishes classes of it; sorted as the classes have to be.
using Key = std::tuple<int, int, int, int>;

struct Choice {
    std::vector<Key> keys;
    std::vector<uint8_t> backs, seconds;
    std::map<Key, Mean> squares, others;
};

// The nearest atom before `i` with the same parent, told from it, at a rigid distance.
int64_t second_of(const Best& best, const Choice& choice, int64_t i, int64_t back) {
    for (int64_t b = 1; b < back; ++b) {
        const auto j = size_t(i - b);
        const int kind = std::get<0>(choice.keys[j]);
        if (best.rigid[size_t(i)] >> b & 1 && (kind == SWING || kind == SPHERE) &&
            choice.backs[j] == back - b)
            return b;
    }
    return 0;
}

float sphere_bits(float length) { return log2_of(12.6f * length * length) + 1.0f; }
float circle_bits(float length) { return log2_of(6.3f * length) + 2.8f; }

// Whether the atoms of each group are told by their length, all or none: few frames tell little of
// each atom.
std::map<int, bool> worth(const Best& best, const Groups& groups) {
    std::map<int, double> gains;
    std::map<int, bool> all;
    for (size_t i = 0; i < best.cost.size(); ++i) {
        const float length = best.rigid_length[i];
        const int group = groups.find(best.rigid_back[i], length);
        if (group) gains[group] += best.cost[i] + 1.5 - sphere_bits(length);
    }
    for (const auto& [group, gain] : gains) all[group] = gain > 0;
    return all;
}

// Whether what sizes differ by is no more than chance has them differ in so few frames.
bool alike(const Best& best, int kind) {
    std::vector<float> sizes;
    for (size_t i = 0; i < best.size.size(); ++i)
        if (best.kind[i] == kind && !best.rigid[i]) sizes.push_back(best.size[i]);
    std::sort(sizes.begin(), sizes.end());
    return sizes.empty() || sizes[sizes.size() * 3 / 4] - sizes[sizes.size() / 4] < ALIKE;
}

Choice chosen(const Samples& s, int64_t n_atoms, const Best& best, float per_octave, bool by_spread,
              int64_t few) {
    const Groups groups(best, few);
    const auto told = worth(best, groups);
    Choice choice;
    choice.seconds.assign(size_t(n_atoms), 0);
    const bool one_size[] = {alike(best, FREE), alike(best, TIME), false};
    for (int64_t at = 0; at < n_atoms; ++at) {
        const auto i = size_t(at);
        const float octaves = one_size[best.kind[i]] ? 0.0f : best.size[i];
        const int size = int(std::floor(octaves * per_octave + 0.5f));
        const int spread = by_spread && best.kind[i] == SWING ? int(std::floor(log2_of(best.spread[i]) + 0.5f)) : 0;
        Key key{best.kind[i], spread, size, 0};
        int64_t back = best.back[i];
        const float length = best.rigid_length[i];
        const int group = groups.find(best.rigid_back[i], length);
        const int64_t second = group ? second_of(best, choice, at, best.rigid_back[i]) : 0;
        if (second && circle_bits(length) < best.cost[i]) {
            back = best.rigid_back[i];
            choice.seconds[i] = uint8_t(second);
            key = {CIRCLE, group, int(back), int(second)};
            add_square(s, n_atoms, at, at - second, choice.others[key]);
        } else if (group && told.at(group)) {
            back = best.rigid_back[i];
            key = {SPHERE, group, int(back), 0};
        }
        choice.keys.push_back(key);
        choice.backs.push_back(uint8_t(back));
        if (std::get<0>(key) >= SPHERE) add_square(s, n_atoms, at, at - back, choice.squares[key]);
    }
    return choice;
}

// Classes of few atoms go with the next of their kind.
void merge_small(std::vector<Key>& keys, int64_t few) {
    std::map<Key, int64_t> counts;
    std::map<Key, Key> become;
    for (const Key& key : keys) ++counts[key];
    for (auto at = counts.begin(); at != counts.end(); ++at) {
        const int kind = std::get<0>(at->first);
        const auto next = std::next(at);
        const bool alike = next != counts.end() && std::get<0>(next->first) == kind;
        become[at->first] = at->first;
        if (kind >= SPHERE || at->second >= few || !alike) continue;
        next->second += at->second;
        become[at->first] = next->first;
    }
    for (Key& key : keys)
        while (become[key] != key) key = become[key];
}

// Lengths of a SWING's atoms, each in a byte.
void set_lengths(const Best& best, Chunk& chunk) {
    std::vector<std::pair<uint32_t, uint32_t>> ranges(chunk.classes.size(), {UINT32_MAX, 0});
    const auto sixteenths = [&](size_t i) {
        return uint32_t(std::min(best.length[i], 4000.0f) * 16.0f + 0.5f);
    };
    chunk.atoms.lengths.assign(size_t(chunk.n_atoms), 0);
    for (size_t i = 0; i < size_t(chunk.n_atoms); ++i) {
        auto& range = ranges[chunk.atoms.classes[i]];
        range = {std::min(range.first, sixteenths(i)), std::max(range.second, sixteenths(i))};
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

Chunk learnt(const uint32_t* x, int64_t n_frames, int64_t n_atoms) {
    const Samples samples = samples_of(x, n_frames, n_atoms);
    const Best best = best_of(samples, n_atoms);
    const bool is_large = n_frames * n_atoms > 100000;
    Choice choice;
    std::map<Key, uint8_t> numbers;
    int64_t few = FEW;
    for (float per_octave = 1.0f;; per_octave *= 0.5f, few *= 4) {
        choice = chosen(samples, n_atoms, best, per_octave, is_large, few);
        merge_small(choice.keys, SYMBOLS / n_frames);
        numbers.clear();
        for (const Key& key : choice.keys) numbers[key] = 0;
        if (int64_t(numbers.size()) <= MOST_CLASSES) break;
    }
    Chunk chunk;
    chunk.n_atoms = n_atoms;
    for (auto& [key, number] : numbers) {
        number = uint8_t(chunk.classes.size());
        Class c;
        c.kind = Kind(std::get<0>(key));
        c.shift = NO_LENGTHS;
        if (c.kind >= SPHERE) c.length = uint32_t(choice.squares[key].value() + 0.5);
        if (c.kind == CIRCLE) c.other = uint32_t(choice.others[key].value() + 0.5);
        chunk.classes.push_back(c);
    }
    for (const Key& key : choice.keys) chunk.atoms.classes.push_back(numbers[key]);
    chunk.atoms.backs = choice.backs;
    chunk.atoms.seconds = choice.seconds;
    set_lengths(best, chunk);
    chunk.sort();
    return chunk;
}

}  // namespace mdio::rigid

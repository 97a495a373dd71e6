// The classes of a chunk, from how each of its atoms is best coded: few enough to pay for their
// tables, and all atoms of a length or a triangle alike.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "rigid.h"
#include "rigid_part.h"

namespace mdio::rigid {
namespace {

constexpr int64_t MIN_GROUP_ATOMS = 64;  // atoms: smaller groups get no length of their own
constexpr int64_t MIN_CLASS_SYMBOLS = 6000;  // of a stream, that pay for a class's frequencies
constexpr float MAX_SPREAD_OCTAVES = 1.2f;  // octaves between quartiles
constexpr int BINS_PER_UNIT = 4;  // bins of lengths
constexpr int PEAK_BINS = 3;  // bins that go with a peak
constexpr int64_t MAX_DISTANCES = 1000;  // distances, to know their mean
constexpr size_t MAX_SAMPLED = 10000;  // atoms, to know their quartiles

// How often models are used, by the atoms of a group and of those that share them.
class Uses {
  public:
    Uses(const AtomModels& models, size_t n_atoms) : counts_((n_atoms + GROUP - 1) / GROUP), n_atoms_(n_atoms) {
        for (size_t group = 0; group < counts_.size(); ++group) ++counts_[models.shared[group] / GROUP];
    }
    // Calls `work(atom, uses)` for all models.
    template <class Work>
    void for_each(const Work& work) const {
        for (size_t group = 0; group < counts_.size(); ++group) {
            if (!counts_[group]) continue;
            const size_t end = std::min((group + 1) * GROUP, n_atoms_);
            for (size_t i = group * GROUP; i < end; ++i) work(i, counts_[group]);
        }
    }

  private:
    std::vector<int32_t> counts_;
    size_t n_atoms_;
};

// Groups of atoms with the same parent offset and about the same rigid length, found in histograms.
class LengthGroups {
  public:
    LengthGroups(const AtomModels& models, const Uses& uses, int64_t min_atoms) : of_bin_(size_t(MAX_OFFSET + 1)) {
        std::vector<std::vector<int32_t>> counts(size_t(MAX_OFFSET + 1));
        uses.for_each([&](size_t i, int32_t n) {
            const auto offset = size_t(models.rigid_offset[i]);
            if (!offset) return;
            if (counts[offset].empty()) counts[offset].resize(BINS);
            counts[offset][size_t(bin_of(models.rigid_length[i]))] += n;
        });
        for (size_t offset = 1; offset <= size_t(MAX_OFFSET); ++offset)
            if (std::accumulate(counts[offset].begin(), counts[offset].end(), int64_t(0)) >= min_atoms)
                find_peaks(counts[offset], min_atoms, of_bin_[offset]);
    }
    // Number of the group; 0: none.
    int find(int32_t offset, float length) const {
        const auto& bins = of_bin_[size_t(offset)];
        return bins.empty() ? 0 : bins[size_t(bin_of(length))];
    }
    static constexpr size_t BINS = size_t(BINS_PER_UNIT * MAX_RIGID_LENGTH) + 2 * PEAK_BINS + 2;

  private:
    static int bin_of(float length) { return int(length * BINS_PER_UNIT) + PEAK_BINS; }
    // Takes the highest peak of the histogram again and again, until it has fewer than `min_atoms`.
    static void find_peaks(std::vector<int32_t>& bins, int64_t min_atoms, std::vector<int16_t>& groups) {
        groups.resize(BINS);
        auto last = int64_t(BINS) - 1;  // bin that is not empty
        while (bins[size_t(last)] == 0) --last;
        last = std::min(last + PEAK_BINS, int64_t(BINS) - 1);
        for (;;) {
            int64_t largest = 0, peak = 0, sum = 0;
            for (int64_t end = 0; end <= last; ++end) {
                sum += bins[size_t(end)];
                if (sum > largest) largest = sum, peak = end - PEAK_BINS;
                if (end >= 2 * PEAK_BINS) sum -= bins[size_t(end - 2 * PEAK_BINS)];
            }
            if (largest < min_atoms) return;
            for (int64_t bin = std::max<int64_t>(peak - PEAK_BINS, 0); bin <= peak + PEAK_BINS; ++bin) {
                if (bins[size_t(bin)]) groups[size_t(bin)] = int16_t(peak);
                bins[size_t(bin)] = 0;
            }
        }
    }
    std::vector<std::vector<int16_t>> of_bin_;  // of each parent offset
};

// Of squared distances that are about the same. Those far above the least are of molecules which a side of the
// box cuts in two.
struct Mean {
    double sum = 0, least = 0;
    int64_t n = 0;
    void add(double x) {
        if (n == 0 || is_cut(least, x)) sum = 0, n = 0, least = x;
        if (is_cut(x, least)) return;
        least = std::min(least, x);
        sum += x, ++n;
    }
    static bool is_cut(double one, double other) { return one > 2 * other + 64; }
    double value() const { return n ? sum / double(n) : 0; }
};

// Adds squared distances of two atoms until there are enough for a mean.
void add_square(const FramePairs& pairs, int64_t i, int64_t j, Mean& mean) {
    if (mean.n >= MAX_DISTANCES) return;
    for (int64_t k = 0; k < pairs.n; ++k) {
        double sum = 0;
        for (int64_t axis = 0; axis < 3; ++axis) {
            const double u = double(pairs.now[k][3 * i + axis]) - pairs.now[k][3 * j + axis];
            sum += u * u;
        }
        mean.add(sum);
    }
}

// Kind, and what distinguishes classes of it; sorts in the order of classes.
using Key = uint64_t;
Key key_of(int kind, int first, int second, int third) {
    const auto part = [](int x) { return uint64_t(x + (1 << 15)); };  // negative numbers, too
    return uint64_t(kind) << 48 | part(first) << 32 | part(second) << 16 | uint64_t(third);
}
int kind_of(Key key) { return int(key >> 48); }

// Numbers of keys in order of appearance; of each how many atoms have it, and the mean squares of distances.
class Keys {
  public:
    std::vector<Key> all;
    std::vector<int64_t> uses;
    std::vector<Mean> squared_lengths, others;
    uint16_t number(Key key) {
        uint16_t& last = last_[key * 0x9E3779B97F4A7C15u >> 55];  // the likely number
        if (size_t(last) < all.size() && all[last] == key) return last;
        const auto position = std::find(all.begin(), all.end(), key);
        last = uint16_t(position - all.begin());
        if (position == all.end())
            all.push_back(key), uses.push_back(0), squared_lengths.emplace_back(), others.emplace_back();
        return last;
    }

  private:
    uint16_t last_[512] = {};
};

struct KeyChoice {
    Keys keys;
    std::vector<uint16_t> numbers;  // of keys
    std::vector<uint8_t> parent_offsets, second_offsets;
};

// Offset of the nearest atom before `i` that has the same parent, at which it is at a rigid distance; 0: none.
int64_t second_offset(const AtomModels& models, const KeyChoice& choice, int64_t i, int64_t offset) {
    const int32_t rigid = models.rigid[models.of(size_t(i))];
    for (int64_t b = 1; b < offset; ++b) {
        const auto j = size_t(i - b);
        if (!(rigid >> b & 1) || choice.parent_offsets[j] != offset - b) continue;
        const int kind = kind_of(choice.keys.all[choice.numbers[j]]);
        if (kind == SWING || kind == SPHERE) return b;
    }
    return 0;
}

float sphere_bits(float length) { return log2_of(12.6f * length * length) + 1.0f; }
float circle_bits(float length) { return log2_of(6.3f * length) + 2.8f; }

// For which groups coding by length pays, for all atoms of a group or none: a few frames do not suffice
// to decide for single atoms.
std::vector<bool> groups_that_pay(const AtomModels& models, const Uses& uses, const LengthGroups& groups) {
    std::vector<double> gains(LengthGroups::BINS);
    std::vector<bool> all(LengthGroups::BINS);
    uses.for_each([&](size_t i, int32_t n) {
        if (!models.rigid_offset[i]) return;
        const float length = models.rigid_length[i];
        gains[size_t(groups.find(models.rigid_offset[i], length))] += n * (models.cost[i] + 1.5 - sphere_bits(length));
    });
    for (size_t group = 1; group < gains.size(); ++group) all[group] = gains[group] > 0;
    return all;
}

// Whether sizes of a kind differ no more than by chance in so few frames.
bool is_one_size(const AtomModels& models, size_t n_atoms, int kind) {
    std::vector<float> sizes;
    for (size_t atom = 0; atom < n_atoms; atom += 1 + n_atoms / MAX_SAMPLED) {
        const size_t i = models.of(atom);
        if (models.kind[i] == kind && !models.rigid[i]) sizes.push_back(models.size[i]);
    }
    if (sizes.empty()) return true;
    const auto quarter = [&](size_t n) { return sizes.begin() + int64_t(sizes.size() * n / 4); };
    std::nth_element(sizes.begin(), quarter(3), sizes.end());
    const float third = *quarter(3);
    std::nth_element(sizes.begin(), quarter(1), quarter(3));  // the others are no smaller
    return third - *quarter(1) < MAX_SPREAD_OCTAVES;
}

int rounded(float x) { return int(x + 1000.5f) - 1000; }  // a call of std::floor is slower

// Takes the choices for a group that shares models from REPEAT atoms before, if those of the atoms before it are the
// same, too; returns whether they are.
bool repeat_choices(KeyChoice& choice, size_t i) {
    constexpr size_t N = GROUP;
    static_assert(GROUP >= MAX_OFFSET);
    const auto same = [=](const auto& of) { return std::equal(of + i - N, of + i, of + i - N - REPEAT); };
    const auto copy = [=](auto& of) { std::copy_n(of.begin() + i - REPEAT, N, of.begin() + i); };
    if (!same(choice.numbers.begin()) || !same(choice.parent_offsets.begin())) return false;
    copy(choice.numbers), copy(choice.parent_offsets), copy(choice.second_offsets);
    for (size_t k = i; k < i + N; ++k) ++choice.keys.uses[choice.numbers[k]];
    return true;
}

KeyChoice choose_keys(const FramePairs& pairs, const AtomModels& models, float per_octave, bool by_spread,
                      int64_t min_atoms) {
    const auto n_atoms = size_t(pairs.n_atoms);
    const Uses uses(models, n_atoms);
    const LengthGroups groups(models, uses, min_atoms);
    const auto by_length = groups_that_pay(models, uses, groups);
    KeyChoice choice;
    choice.second_offsets.assign(n_atoms, 0);
    choice.parent_offsets.resize(n_atoms);
    choice.numbers.resize(n_atoms);
    const bool one_size[] = {is_one_size(models, n_atoms, FREE), is_one_size(models, n_atoms, TIME), false};
    for (size_t i = 0; i < n_atoms; ++i) {
        if (i % GROUP == 0 && !models.has_own(i) && one_size[TIME] && repeat_choices(choice, i)) {
            i += GROUP - 1;
            continue;
        }
        const auto at = int64_t(i);
        const size_t model = models.of(i);
        const float length = models.rigid_length[model];
        const int32_t rigid_offset = models.rigid_offset[model];
        const int group = rigid_offset ? groups.find(rigid_offset, length) : 0;
        const int64_t second = group ? second_offset(models, choice, at, rigid_offset) : 0;
        const bool on_circle = second && circle_bits(length) < models.cost[model];
        int32_t offset = rigid_offset;
        Key key;
        if (on_circle) {
            choice.second_offsets[i] = uint8_t(second);
            key = key_of(CIRCLE, group, offset, int(second));
        } else if (group && by_length[size_t(group)]) {
            key = key_of(SPHERE, group, offset, 0);
        } else {
            const int kind = models.kind[model];
            const int size = one_size[kind] ? 0 : rounded(models.size[model] * per_octave);
            const int spread = by_spread && kind == SWING ? rounded(log2_of(models.spread[model])) : 0;
            key = key_of(kind, spread, size, 0);
            offset = models.offset[model];
        }
        const uint16_t number = choice.keys.number(key);
        ++choice.keys.uses[number];
        choice.numbers[i] = number;
        choice.parent_offsets[i] = uint8_t(offset);
        if (on_circle) add_square(pairs, at, at - second, choice.keys.others[number]);
        if (on_circle || kind_of(key) == SPHERE)
            add_square(pairs, at, at - offset, choice.keys.squared_lengths[number]);
    }
    return choice;
}

// Returns the class of each key, merging classes of few atoms with the next of their kind. Fills `classes`
// with the key of each class.
std::vector<uint8_t> merge_keys(const KeyChoice& choice, int64_t min_atoms, std::vector<uint16_t>& classes) {
    const auto& keys = choice.keys.all;
    std::vector<uint16_t> sorted(keys.size());
    std::iota(sorted.begin(), sorted.end(), uint16_t(0));
    std::sort(sorted.begin(), sorted.end(), [&](uint16_t a, uint16_t b) { return keys[a] < keys[b]; });
    std::vector<uint8_t> numbers(keys.size());
    classes.clear();
    int64_t n = 0;
    for (size_t at = 0; at < sorted.size(); ++at) {
        const int kind = kind_of(keys[sorted[at]]);
        const bool is_one_size = at + 1 < sorted.size() && kind_of(keys[sorted[at + 1]]) == kind;
        n += choice.keys.uses[sorted[at]];
        numbers[sorted[at]] = uint8_t(std::min<size_t>(classes.size(), MAX_CLASSES));
        if (kind < SPHERE && n < min_atoms && is_one_size) continue;
        classes.push_back(sorted[at]);
        n = 0;
    }
    return numbers;
}

// Sets the lengths of atoms of SWING, in a byte each.
void set_lengths(const AtomModels& models, Chunk& chunk) {
    const auto n_atoms = size_t(chunk.n_atoms), n_classes = chunk.classes.size();
    std::vector<uint16_t> sixteenths(n_atoms + GROUP);
    std::vector<uint16_t> shortest(n_classes, UINT16_MAX), longest(n_classes, 0);
    for (size_t group = 0; group < n_atoms; group += GROUP) {
        const float* lengths = models.length.data() + models.of(group);
        for (size_t k = 0; k < GROUP; ++k)
            sixteenths[group + k] = uint16_t(int32_t(std::min(lengths[k], 4000.0f) * 16.0f + 0.5f));
        for (size_t i = group; i < std::min(group + GROUP, n_atoms); ++i) {
            const uint8_t c = chunk.atoms.classes[i];
            shortest[c] = std::min(shortest[c], sixteenths[i]), longest[c] = std::max(longest[c], sixteenths[i]);
        }
    }
    std::vector<uint8_t> shifts(n_classes, 16);  // which leaves nothing of a length
    for (size_t c = 0; c < n_classes; ++c) {
        if (chunk.classes[c].kind != SWING) continue;
        chunk.classes[c].length = shortest[c];
        shifts[c] = 0;
        while ((longest[c] - shortest[c]) >> shifts[c] > 255) ++shifts[c];
        chunk.classes[c].shift = shifts[c];
    }
    chunk.atoms.lengths.resize(n_atoms);
    for (size_t i = 0; i < n_atoms; ++i) {
        const uint8_t c = chunk.atoms.classes[i];
        chunk.atoms.lengths[i] = uint8_t((sixteenths[i] - shortest[c]) >> shifts[c]);
    }
}

}  // namespace

Chunk find_classes(const FramePairs& pairs, int64_t n_frames, AtomModels& models) {
    steps().find_models(pairs, models);
    const int64_t n_atoms = pairs.n_atoms;
    const bool is_large = n_frames * n_atoms > 100000;
    KeyChoice choice;
    std::vector<uint16_t> classes;
    std::vector<uint8_t> numbers;
    int64_t min_atoms = MIN_GROUP_ATOMS;
    for (float per_octave = 1.0f;; per_octave *= 0.5f, min_atoms *= 4) {
        choice = choose_keys(pairs, models, per_octave, is_large, min_atoms);
        numbers = merge_keys(choice, MIN_CLASS_SYMBOLS / n_frames, classes);
        if (int64_t(classes.size()) <= MAX_CLASSES) break;
    }
    Chunk chunk;
    chunk.n_atoms = n_atoms;
    for (const uint16_t key : classes) {
        Class c;
        c.kind = Kind(kind_of(choice.keys.all[key]));
        c.shift = NO_LENGTHS;
        if (c.kind >= SPHERE) c.length = uint32_t(choice.keys.squared_lengths[key].value() + 0.5);
        if (c.kind == CIRCLE) c.second_square = uint32_t(choice.keys.others[key].value() + 0.5);
        chunk.classes.push_back(std::move(c));
    }
    chunk.atoms.classes.resize(size_t(n_atoms));
    for (size_t i = 0; i < size_t(n_atoms); ++i) chunk.atoms.classes[i] = numbers[choice.numbers[i]];
    chunk.atoms.parent_offsets = std::move(choice.parent_offsets);
    chunk.atoms.second_offsets = std::move(choice.second_offsets);
    set_lengths(models, chunk);
    chunk.sort();
    return chunk;
}

}  // namespace mdio::rigid

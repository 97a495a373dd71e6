// The description of a chunk as bytes: classes, frequencies of their symbols, class and parent of each atom.
#include <algorithm>
#include <array>
#include <cstring>

#include "memory.h"
#include "rigid.h"

namespace mdio::rigid {
namespace {

struct Reader {
    const uint8_t* next;
    const uint8_t* end;

    uint32_t bytes(int n) {
        if (end - next < n) fail("the description of a chunk ends too early");
        uint32_t value = 0;
        for (int i = 0; i < n; ++i) value |= uint32_t(*next++) << (8 * i);
        return value;
    }
    uint32_t byte() { return bytes(1); }
    // Seven bits at a time, two bytes at most.
    uint32_t read_short() {
        const uint32_t low = byte();
        return low < 128 ? low : (low & 127) | byte() << 7;
    }
    std::vector<uint8_t> plane(int64_t n) {
        if (end - next < n) fail("the description of a chunk ends too early");
        next += n;
        return {next - n, next};
    }
};

void put(std::string& to, uint32_t value, int n) {
    for (int i = 0; i < n; ++i) to += char(value >> (8 * i) & 255);
}

void put_frequencies(std::string& to, const Frequencies& all) {
    uint32_t first = 0, last = 254;
    while (first < last && all[first] == 0) ++first;
    while (last > first && all[last] == 0) --last;
    put(to, first, 1);
    put(to, last, 1);
    char bytes[2 * 256], *end = bytes;
    const auto put_short = [&](uint32_t value) {
        if (value >= 128) *end++ = char(value & 127) | char(128), value >>= 7;
        *end++ = char(value);
    };
    for (uint32_t s = first; s <= last; ++s) put_short(all[s]);
    put_short(all[ESCAPE]);
    to.append(bytes, size_t(end - bytes));
}

// Reads frequencies, and fills their decoding table of 1 << bits entries, eight at a time; up to seven are written
// after the last.
constexpr uint32_t PADDING = 7;
typedef uint32_t FourEntries __attribute__((vector_size(16)));
void read_table(Reader& from, uint32_t bits, uint32_t* to) {
    const uint32_t first = from.byte(), last = from.byte();
    if (first > last || last >= ESCAPE) fail("symbols of a chunk are out of range");
    const uint32_t* const end = to + (1u << bits);
    const auto read_one = [&](uint32_t s) {
        const uint32_t n = from.read_short();
        if (n >= 1u << 12) fail("the frequency of a symbol is out of range");
        if (n > end - to) fail("the frequencies of symbols do not sum up");
        FourEntries four = FourEntries{0, 1u << 20, 2u << 20, 3u << 20} + (s | n << 8);
        for (uint32_t i = 0; i < n; i += 8, four += 4u << 20) {
            std::memcpy(to + i, &four, sizeof four);
            four += 4u << 20;
            std::memcpy(to + i + 4, &four, sizeof four);
        }
        to += n;
    };
    for (uint32_t s = first; s <= last; ++s) read_one(s);
    read_one(ESCAPE);
    if (to != end) fail("the frequencies of symbols do not sum up");
}

Class read_class(Reader& from) {
    Class c;
    const uint32_t kind = from.byte();
    if (kind >= KINDS) fail("a class of atoms is of no known kind");
    c.kind = Kind(kind);
    c.shift = uint8_t(from.byte());
    if (c.shift > 16 && c.shift != NO_LENGTHS) fail("lengths of a class are out of range");
    for (auto& raw : c.raw) {
        raw = uint8_t(from.byte());
        if (raw > MAX_RAW_BITS) fail("numbers of a class have too many bits");
    }
    c.length = from.bytes(4);
    c.second_square = from.bytes(4);
    for (int axis = 0; axis < 3; ++axis) {
        c.lowest[size_t(axis)] = int32_t(from.bytes(4));
        c.widths[size_t(axis)] = uint8_t(from.byte());
        if (c.widths[size_t(axis)] > 32) fail("vectors of the first frame have too many bits");
    }
    size_t size = 0;
    for (uint32_t t = 0; t < tables_of(c.kind); ++t) size += size_t(1) << bits_of(c.kind, t);
    c.tables.reset(new uint32_t[size + PADDING]);  // not zeroed: read_table fills all
    uint32_t* to = c.tables.get();
    for (uint32_t t = 0; t < tables_of(c.kind); ++t) {
        read_table(from, bits_of(c.kind, t), to);
        to += 1u << bits_of(c.kind, t);
    }
    return c;
}

bool any(const std::vector<Class>& classes, Kind kind) {
    return std::any_of(classes.begin(), classes.end(),
                       [=](const Class& c) { return c.kind == kind; });
}

bool any_lengths(const std::vector<Class>& classes) {
    return std::any_of(classes.begin(), classes.end(), [](const Class& c) {
        return has_length(c.kind) && c.shift != NO_LENGTHS;
    });
}

}  // namespace

std::string write_description(const Chunk& chunk) {
    std::string to;
    put(to, uint32_t(chunk.lanes) + (chunk.is_sectioned ? SECTIONED : 0), 1);
    put(to, uint32_t(chunk.classes.size()), 1);
    if (chunk.is_sectioned) put(to, uint32_t(chunk.key_every), 1), put(to, uint32_t(chunk.min_section_atoms), 2);
    for (const Class& c : chunk.classes) {
        put(to, c.kind, 1);
        put(to, c.shift, 1);
        for (const uint8_t raw : c.raw) put(to, raw, 1);
        put(to, c.length, 4);
        put(to, c.second_square, 4);
        for (size_t axis = 0; axis < 3; ++axis) {
            put(to, uint32_t(c.lowest[axis]), 4);
            put(to, c.widths[axis], 1);
        }
        for (const Frequencies& all : c.frequencies) put_frequencies(to, all);
    }
    const auto plane = [&](const std::vector<uint8_t>& of) { to.append(of.begin(), of.end()); };
    plane(chunk.atoms.classes);
    plane(chunk.atoms.parent_offsets);
    if (any(chunk.classes, CIRCLE)) plane(chunk.atoms.second_offsets);
    if (any_lengths(chunk.classes)) plane(chunk.atoms.lengths);
    return to;
}

Chunk parse_description(const uint8_t* data, int64_t nbytes, int64_t n_atoms) {
    Reader from{data, data + nbytes};
    Chunk chunk;
    chunk.n_atoms = n_atoms;
    chunk.lanes = from.byte();
    chunk.is_sectioned = chunk.lanes >= int64_t(SECTIONED);
    if (chunk.is_sectioned) chunk.lanes -= int64_t(SECTIONED);
    if (chunk.lanes != 8 && chunk.lanes != MAX_LANES) fail("a chunk has 8 or 32 lanes");
    const uint32_t n_classes = from.byte();
    if (n_classes > MAX_CLASSES) fail("a chunk has too many classes of atoms");
    if (chunk.is_sectioned) chunk.key_every = from.byte(), chunk.min_section_atoms = from.bytes(2);
    for (uint32_t c = 0; c < n_classes; ++c) chunk.classes.push_back(read_class(from));
    chunk.atoms.classes = from.plane(n_atoms);
    chunk.atoms.parent_offsets = from.plane(n_atoms);
    if (any(chunk.classes, CIRCLE)) chunk.atoms.second_offsets = from.plane(n_atoms);
    if (any_lengths(chunk.classes)) chunk.atoms.lengths = from.plane(n_atoms);
    if (from.next != from.end) fail("the description of a chunk is too long");
    chunk.sort();
    chunk.divide();
    for (const bool is_key : {false, true}) {
        int64_t at = 0;
        for (Class& c : chunk.classes)
            for (size_t stream = 0; stream < STREAMS; ++stream) {
                const bool is_plain = is_key && is_temporal(c.kind);
                (is_key ? c.key_raw_begin : c.raw_begin)[stream] = at;
                at += (c.n * (is_plain ? c.widths[stream] : c.raw[stream]) + 7) / 8;
            }
    }
    return chunk;
}

void Chunk::sort() {
    // Two parts of the atoms are counted and sorted at once: slots of the same class do not wait for each other.
    const int64_t part = n_atoms / 2 / ROW_RUN * ROW_RUN;
    const uint8_t* of = atoms.classes.data();
    std::array<std::array<int32_t, 256>, 2> counts{}, next{};
    for (int64_t i = 0; i < part; ++i) ++counts[0][of[i]], ++counts[1][of[part + i]];
    for (int64_t i = 2 * part; i < n_atoms; ++i) ++counts[1][of[i]];
    int64_t begin = 0;
    std::array<bool, 256> has_own{};  // its atoms have lengths
    for (size_t number = 0; number < 256; ++number) {
        const int64_t n = counts[0][number] + counts[1][number];
        if (number >= classes.size() && n) fail("an atom is of no class");
        if (number >= classes.size()) continue;
        Class& c = classes[number];
        c.begin = begin, c.n = n;
        next[0][number] = int32_t(begin), next[1][number] = int32_t(begin) + counts[0][number];
        has_own[number] = has_length(c.kind) && c.shift != NO_LENGTHS;
        is_temporal |= mdio::rigid::is_temporal(c.kind);
        begin += (n + GROUP - 1) / GROUP * GROUP;
    }
    slots.resize(size_t(n_atoms));
    second_slots.assign(size_t(begin), 0);
    squared_lengths.assign(size_t(begin), 0.0f);
    for (const Class& c : classes)
        if (c.shift == NO_LENGTHS) std::fill_n(squared_lengths.begin() + c.begin, c.n, float(c.length));
    for (int64_t i = 0; i < std::min<int64_t>(n_atoms, 256); ++i)
        if (atoms.parent_offsets[size_t(i)] > i) fail("an atom's parent is before the first");
    run_slots.resize(size_t((n_atoms + ROW_RUN - 1) / ROW_RUN + 1) * classes.size());
    const auto put_next_slots = [&](int64_t run, const auto& from) {
        std::copy_n(from.begin(), classes.size(), run_slots.begin() + run * int64_t(classes.size()));
    };
    const auto put = [&](int64_t i, auto& from) {
        const auto at = size_t(i);
        if (i % ROW_RUN == 0) put_next_slots(i / ROW_RUN, from);
        const int32_t slot = slots[at] = from[of[i]]++;
        if (!has_own[of[i]]) return;
        const Class& c = classes[of[i]];
        const int64_t length = (c.length & 0xFFFF) + (int64_t(atoms.lengths[at]) << c.shift);
        squared_lengths[size_t(slot)] = float(length * length / 256);
    };
    for (int64_t i = 0; i < part; ++i) put(i, next[0]), put(part + i, next[1]);
    for (int64_t i = 2 * part; i < n_atoms; ++i) put(i, next[1]);
    put_next_slots((n_atoms + ROW_RUN - 1) / ROW_RUN, next[1]);
    for (int64_t i = 0; i < n_atoms && !atoms.second_offsets.empty(); ++i) {
        if (classes[of[i]].kind != CIRCLE) continue;
        const int64_t other = i - atoms.second_offsets[size_t(i)];
        if (other < 0 || of[other] >= of[i]) fail("an atom's second one does not come before it");
        second_slots[size_t(slots[size_t(i)])] = slots[size_t(other)];
    }
    are_adjacent.assign(size_t(begin / GROUP), 0);
    for (const Class& c : classes) {
        if (c.kind != CIRCLE) continue;
        for (int64_t slot = c.begin; slot < c.begin + c.n; slot += GROUP) {
            const int32_t* group = second_slots.data() + slot;
            int32_t others = 0;
            for (int32_t k = 0; k < int32_t(GROUP); ++k) others |= group[k] ^ (group[0] + k);
            are_adjacent[size_t(slot / GROUP)] = others == 0;
        }
    }
}

void Chunk::divide() {
    units.clear();
    sections.assign(1, {});
    int64_t n = 0;  // atoms in the last section
    for (size_t number = 0; number < classes.size(); ++number) {
        Class& c = classes[number];
        c.first_unit = int64_t(units.size());
        for (int64_t begin = 0; begin < c.n; begin += BLOCK) {
            if (min_section_atoms && n >= min_section_atoms) sections.emplace_back(), n = 0;
            units.push_back({number, begin, std::min(BLOCK, c.n - begin), int64_t(sections.size()) - 1});
            n += units.back().n;
            sections.back().end = int64_t(units.size());
            sections.back().is_temporal &= mdio::rigid::is_temporal(c.kind);
        }
    }
}

int64_t Chunk::raw_nbytes(bool is_key) const {
    int64_t sum = 0;
    for (const Class& c : classes) {
        const bool is_plain = is_key && mdio::rigid::is_temporal(c.kind);
        for (size_t stream = 0; stream < STREAMS; ++stream)
            sum += (c.n * (is_plain ? c.widths[stream] : c.raw[stream]) + 7) / 8;
    }
    return sum;
}

Frequencies normalised(const std::array<uint32_t, 256>& counts, uint32_t bits) {
    const uint32_t whole = 1u << bits;
    uint32_t first = 0, end = 256;  // of the symbols that occur
    while (first < 255 && counts[first] == 0) ++first;
    while (end > first + 1 && counts[end - 1] == 0) --end;
    uint64_t total = 0;
    for (uint32_t s = first; s < end; ++s) total += counts[s];
    Frequencies all{};
    uint32_t sum = 0;
    for (uint32_t s = first; s < end; ++s) {
        if (counts[s] == 0) continue;
        all[s] = uint32_t(std::max<uint64_t>(1, (counts[s] * uint64_t(whole) + total / 2) / total));
        sum += all[s];
    }
    if (all[ESCAPE] == 0) ++all[ESCAPE], ++sum;
    // The remainder is added to or taken from the largest frequency, where it costs least.
    while (sum != whole) {
        uint32_t most = 0;
        for (uint32_t s = first; s < end; ++s)
            if (all[s] > all[most]) most = s;
        if (all[ESCAPE] > all[most]) most = ESCAPE;
        if (sum > whole) {
            const uint32_t less = std::min(sum - whole, std::max(all[most] / 16, 1u));
            all[most] -= less, sum -= less;
        } else {
            all[most] += whole - sum, sum = whole;
        }
    }
    if (all[ESCAPE] == whole) all[ESCAPE] = whole / 2, all[0] = whole / 2;
    return all;
}

}  // namespace mdio::rigid

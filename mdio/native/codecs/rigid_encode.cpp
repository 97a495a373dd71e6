// Encodes frames to a chunk: integers, vectors from parents, their numbers, their symbols, entropy coding.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fold.h"
#include "memory.h"
#include "rigid_encode.h"
#include "rigid_part.h"
#include "rigid_rows.h"

namespace mdio {
namespace rigid {
namespace {

constexpr int64_t MAX_SYMBOLS_OF_8_LANES = 6000;  // of a frame: with fewer, 32 lanes cost too many bytes

// The numbers of some atoms of a class in one frame; `bad`: 1 where they are escaped.
struct NumberBuffers {
    int32_t numbers[STREAMS][BLOCK + GROUP];
    uint8_t bad[BLOCK + GROUP];
};

// Memory that is reused for the next chunk.
struct EncoderMemory {
    Rows rows;
    std::vector<CodedFrame> frames;
    std::vector<uint8_t> words;
    Vectors now{0}, before{0};
    AtomModels models;
    std::string description;
    std::vector<uint8_t> data;
};

class Encoder {
  public:
    // `memory.rows` has been filled.
    Encoder(int64_t n_frames, int64_t n_atoms, int key_every, int min_section_atoms, EncoderMemory& memory)
        : n_frames_(n_frames), chunk_(find_classes(memory.rows.pairs(), n_frames, memory.models)), memory_(memory),
          now_(memory.now), before_(memory.before), atom_places_(size_t(chunk_.n_slots()), {-3, -3}) {
        chunk_.lanes = 3 * n_atoms < MAX_SYMBOLS_OF_8_LANES ? 8 : MAX_LANES;
        chunk_.is_sectioned = key_every || min_section_atoms;
        chunk_.key_every = key_every;
        chunk_.min_section_atoms = min_section_atoms;
        chunk_.divide();
        now_.fit(chunk_.n_slots());
        before_.fit(chunk_.n_slots());
        for (int64_t i = 0; i < n_atoms; ++i)
            atom_places_[size_t(chunk_.slots[size_t(i)])] = {int32_t(3 * i), int32_t(3 * chunk_.parent_of(i))};
        groups_ = groups_along_row(atom_places_, n_atoms);
    }

    // Returns whether all frames have integers.
    bool encode() {
        choose_raw_bits();
        auto& frames = memory_.frames;
        if (int64_t(frames.size()) < n_frames_) frames.resize(size_t(n_frames_));
        for (const Class& c : chunk_.classes)
            counts_.emplace_back(n_counts(c.kind));
        for (int64_t f = 0; f < n_frames_; ++f) {
            const int32_t* row = memory_.rows.row(f);
            if (!row) return false;
            if (f < 2)
                std::swap(now_, before_);  // choose_raw_bits has loaded them
            else
                load(row);
            code_frame(f, frames[size_t(f)]);
        }
        for (size_t c = 0; c < chunk_.classes.size(); ++c) set_frequencies(chunk_.classes[c], counts_[c].data());
        choose_key_widths();
        const EntropyCoder coder(chunk_);
        memory_.description = write_description(chunk_);
        auto& data = memory_.data;
        data.resize(size_t(8 * n_frames_) * chunk_.sections.size());
        size_t sizes_at = 0;
        for (int64_t f = 0; f < n_frames_; ++f) {
            const CodedFrame& coded = frames[size_t(f)];
            put_raw_bits(coded, chunk_.is_key(f), data);
            int64_t unit = 0;
            size_t escaped = 0;
            for (size_t number = 0; number < chunk_.sections.size(); ++number, sizes_at += 8) {
                const Section& section = chunk_.sections[number];
                const uint8_t *begin = nullptr, *end = nullptr;
                if (chunk_.has_words(section, chunk_.is_key(f))) {
                    begin = coder.encode(coded, chunk_.is_key(f), unit, section.end, memory_.words);
                    end = memory_.words.data() + memory_.words.size();
                }
                const size_t next = coded.escaped_ends[number];
                const uint32_t sizes[2] = {uint32_t(end - begin), uint32_t(next - escaped)};
                std::memcpy(data.data() + sizes_at, sizes, 8);
                data.insert(data.end(), begin, end);
                data.insert(data.end(), coded.escaped.data() + escaped, coded.escaped.data() + next);
                unit = section.end, escaped = next;
            }
        }
        return true;
    }

  private:
    void load(const int32_t* row) {
        std::swap(now_, before_);
        load_vectors(row, atom_places_.data(), groups_, now_);
    }

    // Computes the numbers of up to BLOCK atoms of a class, and their symbols.
    void to_numbers(const Class& c, int64_t begin, int64_t n, uint16_t* const symbols[STREAMS]) {
        const int64_t at = c.begin + begin;
        ClassVectors s{c.kind, n, float(c.second_square), {}, {}, {}, chunk_.second_slots.data() + at,
                       chunk_.are_adjacent.data() + at / GROUP, chunk_.squared_lengths.data() + at};
        for (int axis = 0; axis < 3; ++axis) {
            s.all[axis] = now_.axes[axis].data();
            s.now[axis] = s.all[axis] + at;
            s.before[axis] = before_.axes[axis].data() + at;
        }
        steps_.to_numbers(s, {{c.raw[0], c.raw[1], c.raw[2]},
                              {numbers_.numbers[0], numbers_.numbers[1], numbers_.numbers[2]},
                              numbers_.bad,
                              {symbols[0], symbols[1], symbols[2]}});
    }

    void choose_raw_bits() {
        // For each class, the numbers of the streams that share a table, and so the bits; SWING has two tables.
        std::vector<std::array<std::vector<int32_t>, 2>> numbers_of_classes(chunk_.classes.size());
        uint16_t symbols[RAW_ATOMS + GROUP];  // not used
        uint16_t* const unused[STREAMS] = {symbols, symbols, symbols};
        for (Class& c : chunk_.classes) c.raw.fill(MAX_RAW_BITS);  // with which most numbers have a symbol
        const FramePairs& pairs = memory_.rows.pairs();
        const int64_t n_pairs = n_frames_ < MANY_FRAMES ? 1 : RAW_PAIRS;
        for (int64_t k = n_pairs; k-- > 0;) {  // the first two frames last
            load(pairs.before[k * MAX_PAIRS / RAW_PAIRS]);
            load(pairs.now[k * MAX_PAIRS / RAW_PAIRS]);
            for (size_t c = 0; c < numbers_of_classes.size(); ++c) {
                const Class& one = chunk_.classes[c];
                for (int64_t begin = 0; begin < one.n; begin += raw_step(one)) {
                    const int64_t n = std::min(RAW_ATOMS, one.n - begin);
                    to_numbers(one, begin, n, unused);
                    const bool all = !std::memchr(numbers_.bad, 1, size_t(n));
                    for (size_t s = 0; s < STREAMS; ++s) {
                        if (one.kind == CIRCLE ? s != 1 : one.kind == SPHERE && s == 2) continue;
                        auto& to = numbers_of_classes[c][one.kind == SWING && s == 2];
                        const int32_t* from = numbers_.numbers[s];
                        if (all) to.insert(to.end(), from, from + n);
                        for (int64_t i = 0; !all && i < n; ++i)
                            if (!numbers_.bad[i]) to.push_back(from[i]);
                    }
                }
            }
        }
        const double of_frames = double(n_pairs) / double(n_frames_);
        for (size_t c = 0; c < numbers_of_classes.size(); ++c) {
            Class& one = chunk_.classes[c];
            const double share = of_frames * double(RAW_ATOMS) / double(raw_step(one));
            const uint8_t bits = raw_bits(numbers_of_classes[c][0], share);
            if (one.kind == CIRCLE) one.raw = {0, bits, 0};
            if (one.kind == SPHERE) one.raw = {bits, bits, 0};
            if (one.kind == SWING) one.raw = {bits, bits, raw_bits(numbers_of_classes[c][1], share)};
            if (one.kind < SWING) one.raw = {bits, bits, bits};
        }
    }

    // Distance between the samples of a class's atoms.
    static int64_t raw_step(const Class& c) { return std::max(RAW_ATOMS, c.n / RAW_PARTS / GROUP * GROUP); }

    // Chooses the bits of the vectors of key frames.
    void choose_key_widths() {
        size_t at = 0;
        for (Class& c : chunk_.classes) {
            if (!is_temporal(c.kind)) continue;
            for (size_t axis = 0; axis < 3 && c.n; ++axis, at += size_t(c.n)) {
                int32_t lowest = INT32_MAX, highest = INT32_MIN;
                for (int64_t f = 0; f < n_frames_; ++f) {
                    if (!chunk_.is_key(f)) continue;
                    const int32_t* v = memory_.frames[size_t(f)].vectors.data() + at;
                    for (int64_t i = 0; i < c.n; ++i)
                        lowest = std::min(lowest, v[i]), highest = std::max(highest, v[i]);
                }
                c.lowest[axis] = lowest;
                c.widths[axis] = uint8_t(bits(uint32_t(highest) - uint32_t(lowest)));
            }
        }
    }

    // Appends the low bits of a frame, and the vectors of a key frame.
    void put_raw_bits(const CodedFrame& coded, bool is_key, std::vector<uint8_t>& to) const {
        const uint8_t* raw = coded.raw.data();
        const int32_t* v = coded.vectors.data();
        for (const Class& c : chunk_.classes)
            for (size_t s = 0; s < STREAMS; ++s) {
                const bool is_plain = is_key && is_temporal(c.kind);
                const auto nbytes = size_t((c.n * (is_plain ? c.widths[s] : c.raw[s]) + 7) / 8);
                if (!is_plain) {
                    to.insert(to.end(), raw, raw + nbytes);
                    raw += nbytes;
                    continue;
                }
                const size_t at = to.size();
                to.resize(at + nbytes + BitWriter::PADDING);
                BitWriter writer(to.data() + at);
                for (int64_t begin = 0; begin < c.n; begin += BLOCK) {
                    int32_t above[BLOCK];
                    const int64_t n = std::min(BLOCK, c.n - begin);
                    for (int64_t i = 0; i < n; ++i) above[i] = int32_t(uint32_t(*v++) - uint32_t(c.lowest[s]));
                    writer.put_all(above, n, c.widths[s]);
                }
                to.resize(at + nbytes);
            }
    }

    void code_frame(int64_t f, CodedFrame& coded) {
        coded.begin(chunk_.n_slots());
        coded.raw.resize(size_t(chunk_.raw_nbytes(false)) + BitWriter::PADDING);
        uint8_t* raw = coded.raw.data();
        size_t section = 0;
        for (size_t number = 0; number < chunk_.classes.size(); ++number) {
            const Class& c = chunk_.classes[number];
            const bool is_plain = chunk_.is_key(f) && is_temporal(c.kind);
            for (size_t axis = 0; is_plain && axis < 3; ++axis) {
                const int32_t* v = now_.axes[axis].data() + c.begin;
                coded.vectors.insert(coded.vectors.end(), v, v + c.n);
            }
            uint8_t* to[STREAMS];
            for (size_t s = 0; s < STREAMS && !is_plain; ++s) to[s] = raw, raw += (c.n * c.raw[s] + 7) / 8;
            for (int64_t begin = 0, unit = c.first_unit; begin < c.n; begin += BLOCK, ++unit) {
                if (!is_plain)
                    code_block(c, begin, std::min(BLOCK, c.n - begin), counts_[number].data(), coded, to);
                if (unit + 1 == chunk_.sections[section].end)
                    coded.escaped_ends.push_back(coded.escaped.size()), ++section;
            }
        }
        coded.escaped_ends.resize(chunk_.sections.size(), coded.escaped.size());
    }

    void code_block(const Class& c, int64_t begin, int64_t n, uint32_t* counts, CodedFrame& coded,
                    uint8_t* (&raw)[STREAMS]) {
        const int64_t at = c.begin + begin;
        uint16_t* symbols[STREAMS];
        for (int s = 0; s < STREAMS; ++s) symbols[s] = coded.symbols[s].data() + at;
        to_numbers(c, begin, n, symbols);
        const uint8_t *bad = numbers_.bad, *end = bad + n;
        const auto next = [&](const uint8_t* from) {
            return static_cast<const uint8_t*>(std::memchr(from, 1, size_t(end - from)));
        };
        for (const uint8_t* one = next(bad); one;) {
            const int64_t group = (one - bad) / GROUP * GROUP, n_group = std::min(GROUP, n - group);
            for (; one && one < bad + group + n_group; one = next(one + 1))
                escape(c, at, one - bad, symbols, coded.escaped);
            if (c.kind >= SPHERE) set_contexts(c, at, group, n_group, symbols);
        }
        count(c.kind, symbols, n, counts);
        for (int s = 0; s < STREAMS; ++s) {
            uint8_t packed[2 * (BLOCK + GROUP) + BitWriter::PADDING];
            BitWriter writer(packed);
            writer.put_all(numbers_.numbers[s], n, c.raw[size_t(s)]);
            std::memcpy(raw[s], packed, size_t(writer.end() - packed));
            raw[s] += writer.end() - packed;
        }
    }

    // Sets the contexts of a group that has escaped atoms.
    void set_contexts(const Class& c, int64_t at, int64_t i, int64_t n, uint16_t* const symbols[STREAMS]) {
        const Contexts part{c.kind, n, {c.raw[0], c.raw[1]}, float(c.second_square),
                            {symbols[0] + i, symbols[1] + i, symbols[2] + i},
                            {numbers_.numbers[0] + i, numbers_.numbers[1] + i},
                            {now_.axes[0].data(), now_.axes[1].data(), now_.axes[2].data()},
                            chunk_.second_slots.data() + at + i, chunk_.are_adjacent.data() + (at + i) / GROUP,
                            chunk_.squared_lengths.data() + at + i};
        steps_.set_contexts(part);
    }

    void escape(const Class& c, int64_t at, int64_t i, uint16_t* const symbols[STREAMS], std::vector<uint8_t>& to) {
        for (int s = 0; s < STREAMS; ++s) {
            numbers_.numbers[s][i] = 0;
            symbols[s][i] = uint16_t(s == 0 ? int32_t(ESCAPE) : is_centred(c.kind, s) ? ZERO_SYMBOL : 0);
        }
        for (const auto& axis : now_.axes) {
            uint32_t x = folded(axis[size_t(at + i)]);
            for (; x >= 128; x >>= 7) to.push_back(uint8_t(x | 128));
            to.push_back(uint8_t(x));
        }
    }

    static constexpr int64_t RAW_PAIRS = 3, RAW_PARTS = 16, RAW_ATOMS = 128;  // of frames; of each class
    static constexpr int64_t MANY_FRAMES = 32;

    const Steps& steps_ = steps();
    int64_t n_frames_;
    Chunk chunk_;
    EncoderMemory& memory_;
    Vectors &now_, &before_;
    std::vector<Place> atom_places_;  // of slots
    std::vector<int32_t> groups_;  // in the order in which their vectors are loaded
    NumberBuffers numbers_;
    std::vector<std::vector<uint32_t>> counts_;  // of each class
};

}  // namespace
}  // namespace rigid
}  // namespace mdio

mdio_status mdio_rigid_encode(mdio_memory* memory, const mdio_frames* positions, mdio_coding coding, int key_every,
                              int min_section_atoms, mdio_rigid* made) {
    using namespace mdio;
    const Output all{nullptr, positions->n_atoms, 0};
    if (const char* what = wrong_with(positions->n_frames, positions->n_atoms, coding, {nullptr, 0, 0}, all))
        return wrong(*memory, what);
    if (positions->n_frames < 2) return wrong(*memory, "a chunk has at least two frames");
    if (key_every < 0 || key_every > 255 || min_section_atoms < 0 || min_section_atoms > 4096)
        return wrong(*memory, "key frames are at most 255 apart, and sections have at most 4,096 atoms");
    return guarded(*memory, [&] {
        auto& kept = mdio_memory::kept<rigid::EncoderMemory>(memory->encoding);
        if (!kept.rows.begin(*positions, coding)) return MDIO_NO_INTEGERS;
        rigid::Encoder encoder(positions->n_frames, positions->n_atoms, key_every, min_section_atoms, kept);
        if (!encoder.encode()) return MDIO_NO_INTEGERS;
        *made = {reinterpret_cast<const uint8_t*>(kept.description.data()), int64_t(kept.description.size()),
                 kept.data.data(), int64_t(kept.data.size()), positions->n_frames, positions->n_atoms};
        return MDIO_OK;
    });
}

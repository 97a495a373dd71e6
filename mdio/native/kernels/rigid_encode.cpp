// Frames of integers to a chunk: vectors from parents, the numbers that tell them, their symbols,
// and last the entropy coder.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "fold.h"
#include "kernels.h"
#include "rigid_encode.h"
#include "rigid_part.h"

namespace mdio {
namespace rigid {
namespace {

constexpr int32_t MOST_SYMBOL = 254;
constexpr int64_t FEW_SYMBOLS = 6000;  // of a frame, for which 8 lanes cost less

// The numbers of one class and frame. Where they cannot be told, `bad` is set.
struct Numbers {
    std::vector<int32_t> of[STREAMS];
    std::vector<uint8_t> bad;
    explicit Numbers(int64_t n) : bad(size_t(n)) {
        for (auto& v : of) v.resize(size_t(n));
    }
};

// `share`: of all frames those that the numbers are of. How many low bits of a stream's numbers are stored as they are: as few symbols as lose little.
uint8_t raw_bits(const std::vector<int32_t>& numbers, double share) {
    if (numbers.empty()) return 0;
    double best = 0;
    uint8_t raw = 0;
    for (uint32_t bits = 0; bits <= MOST_RAW; ++bits) {
        uint32_t counts[256] = {};
        for (const int32_t v : numbers) {
            const int64_t symbol = (int64_t(v) >> bits) + MIDDLE;
            ++counts[symbol < 0 || symbol > MOST_SYMBOL ? int64_t(ESCAPE) : symbol];
        }
        const auto n = double(numbers.size());
        double cost = n * bits + 30.0 * counts[ESCAPE];
        for (const uint32_t count : counts)
            if (count) cost += count * std::log2(n / count) + 6.0 * share;
        if (bits == 0 || cost < best) best = cost, raw = uint8_t(bits);
        // Once symbols are few, more bits only cost more.
        if (cost > best && counts[ESCAPE] == 0) break;
    }
    return raw;
}

// In two tables: the same symbol twice does not wait for itself.
void count(const uint8_t* symbols, int64_t n, std::array<uint32_t, 256>& counts) {
    uint32_t odd[256] = {};
    int64_t i = 0;
    for (; i + 2 <= n; i += 2) ++counts[symbols[i]], ++odd[symbols[i + 1]];
    if (i < n) ++counts[symbols[i]];
    for (size_t s = 0; s < 256; ++s) counts[s] += odd[s];
}

class Encoder {
  public:
    Encoder(const uint32_t* x, int64_t n_frames, int64_t n_atoms)
        : x_(x), n_frames_(n_frames), n_atoms_(n_atoms), chunk_(learnt(x, n_frames, n_atoms)),
          now_(chunk_.n_slots()), before_(chunk_.n_slots()), numbers_(chunk_.n_slots()) {
        chunk_.lanes = 3 * n_atoms < FEW_SYMBOLS ? 8 : MOST_LANES;
        raw_.resize(size_t(4 * STREAMS * n_atoms_ + 8 * int64_t(chunk_.classes.size()) + 8));
    }

    RigidBytes encode() {
        choose_raw_bits();
        static thread_local std::vector<Coded> frames;  // kept: new memory takes time
        if (int64_t(frames.size()) < n_frames_) frames.resize(size_t(n_frames_));
        for (const Class& c : chunk_.classes) counts_.emplace_back(tables_of(c.kind));
        for (int64_t f = 0; f < n_frames_; ++f) code(f, frames[size_t(f)]);
        for (size_t c = 0; c < chunk_.classes.size(); ++c)
            for (uint32_t t = 0; t < tables_of(chunk_.classes[c].kind); ++t)
                chunk_.classes[c].frequencies.push_back(
                    normalised(counts_[c][t], bits_of(chunk_.classes[c].kind, t)));
        const Coder coder(chunk_);
        RigidBytes made{described(chunk_), std::vector<uint8_t>(size_t(8 * n_frames_))};
        std::vector<uint8_t> words;
        for (int64_t f = 0; f < n_frames_; ++f) {
            const Coded& coded = frames[size_t(f)];
            const uint8_t* begin = coder.encode(coded, f == 0, words);
            const uint8_t* end = words.data() + words.size();
            const uint32_t sizes[2] = {uint32_t(end - begin), uint32_t(coded.escaped.size())};
            std::memcpy(made.data.data() + 8 * f, sizes, 8);
            made.data.insert(made.data.end(), coded.raw.begin(), coded.raw.end());
            made.data.insert(made.data.end(), begin, end);
            made.data.insert(made.data.end(), coded.escaped.begin(), coded.escaped.end());
        }
        return made;
    }

  private:
    void load(int64_t frame) {
        std::swap(now_, before_);
        const uint32_t* row = x_ + 3 * n_atoms_ * frame;
        const int32_t *parents = chunk_.parents.data(), *slots = chunk_.slots.data();
        int32_t* to[3] = {now_.axes[0].data(), now_.axes[1].data(), now_.axes[2].data()};
        const uint32_t origin[3] = {};
        for (int64_t i = 0; i < n_atoms_; ++i) {
            const uint32_t* from = parents[i] < 0 ? origin : row + 3 * int64_t(parents[i]);
            const int64_t slot = slots[i];
            for (int axis = 0; axis < 3; ++axis) to[axis][slot] = int32_t(row[3 * i + axis] - from[axis]);
        }
    }

    void tell_class(const Class& c) {
        Source s{c.kind, c.n, float(c.other), {}, {}, {}, chunk_.seconds.data() + c.begin,
                 chunk_.in_row.data() + c.begin / GROUP, chunk_.squares.data() + c.begin};
        for (int axis = 0; axis < 3; ++axis) {
            s.all[axis] = now_.axes[axis].data();
            s.now[axis] = s.all[axis] + c.begin;
            s.before[axis] = before_.axes[axis].data() + c.begin;
        }
        steps_.tell(s, told());
    }

    Told told() {
        auto& of = numbers_.of;
        return {{of[0].data(), of[1].data(), of[2].data()}, numbers_.bad.data()};
    }

    void choose_raw_bits() {
        std::vector<std::array<std::vector<int32_t>, STREAMS>> seen(chunk_.classes.size());
        const int64_t n_pairs = std::min(n_frames_ - 1, n_frames_ < MANY_FRAMES ? 1 : RAW_SAMPLES);
        for (int64_t k = 0; k < n_pairs; ++k) {
            const int64_t frame = 1 + k * (n_frames_ - 1) / n_pairs;
            load(frame - 1);
            load(frame);
            for (size_t c = 0; c < seen.size(); ++c) {
                tell_class(chunk_.classes[c]);
                const int64_t n = chunk_.classes[c].n;
                for (size_t s = 0; s < STREAMS; ++s)
                    for (int64_t i = 0; i < n; i += 1 + n / RAW_ATOMS)
                        if (!numbers_.bad[size_t(i)]) seen[c][s].push_back(numbers_.of[s][size_t(i)]);
            }
        }
        const double of_frames = double(n_pairs) / double(n_frames_);
        for (size_t c = 0; c < seen.size(); ++c) {
            Class& one = chunk_.classes[c];
            auto& [a, b, d] = seen[c];
            const double share = of_frames / double(1 + one.n / RAW_ATOMS);
            // Streams that share their symbols share these.
            if (one.kind != CIRCLE) a.insert(a.end(), b.begin(), b.end());
            if (one.kind < SWING) a.insert(a.end(), d.begin(), d.end());
            const uint8_t bits = raw_bits(one.kind == CIRCLE ? b : a, share);
            if (one.kind == CIRCLE) one.raw = {0, bits, 0};
            if (one.kind == SPHERE) one.raw = {bits, bits, 0};
            if (one.kind == SWING) one.raw = {bits, bits, raw_bits(d, share)};
            if (one.kind < SWING) one.raw = {bits, bits, bits};
        }
    }

    void begin_class(Class& c, BitWriter& raw) {
        for (size_t axis = 0; axis < 3; ++axis) {
            const int32_t* v = now_.axes[axis].data() + c.begin;
            const auto [least, most] = std::minmax_element(v, v + c.n);
            c.lowest[axis] = c.n ? *least : 0;
            const uint32_t width = c.n ? bits(uint32_t(*most) - uint32_t(*least)) : 0;
            c.widths[axis] = uint8_t(width);
            for (int64_t i = 0; i < c.n; ++i) raw.put(uint32_t(v[i]) - uint32_t(c.lowest[axis]), width);
            raw.finish();
        }
    }

    void code(int64_t f, Coded& coded) {
        load(f);
        coded.begin(chunk_.n_slots());
        BitWriter raw(raw_.data());
        for (size_t c = 0; c < chunk_.classes.size(); ++c) {
            Class& one = chunk_.classes[c];
            if (f == 0 && is_temporal(one.kind))
                begin_class(one, raw);
            else
                code_class(one, counts_[c], coded, raw);
        }
        coded.raw.assign(std::as_const(raw_).data(), raw.end());
    }

    void code_class(const Class& c, std::vector<std::array<uint32_t, 256>>& counts, Coded& coded,
                    BitWriter& raw) {
        tell_class(c);
        uint8_t* symbols[STREAMS];
        uint8_t* contexts[STREAMS];
        for (int s = 0; s < STREAMS; ++s) {
            symbols[s] = coded.symbols[s].data() + c.begin;
            contexts[s] = coded.contexts[s].data() + c.begin;
        }
        uint8_t* bad = numbers_.bad.data();
        steps_.symbols_of(told(), c, symbols);  // where they have none, they are bad, too
        for (uint8_t* at = bad; (at = std::find_if(at, bad + c.n, [](uint8_t b) { return b; })) != bad + c.n; ++at)
            escape(c, at - bad, symbols, coded.escaped);
        if (c.kind >= SPHERE) {
            const Contexts part{c.kind, c.n, {c.raw[0], c.raw[1]}, float(c.other), {symbols[0], symbols[1]},
                                {numbers_.of[0].data(), numbers_.of[1].data()},
                                {now_.axes[0].data(), now_.axes[1].data(), now_.axes[2].data()},
                                chunk_.seconds.data() + c.begin, chunk_.in_row.data() + c.begin / GROUP,
                                chunk_.squares.data() + c.begin};
            steps_.contexts_of(part, contexts);
        }
        for (int s = 0; s < STREAMS; ++s) {
            auto* tables = &counts[USES[c.kind][s].first];
            if (USES[c.kind][s].contexts == 1)
                count(symbols[s], c.n, *tables);
            else
                for (int64_t i = 0; i < c.n; ++i) ++tables[contexts[s][i]][symbols[s][i]];
            raw.put_all(numbers_.of[s].data(), c.n, c.raw[size_t(s)]);
        }
    }

    void escape(const Class& c, int64_t i, uint8_t* const symbols[STREAMS], std::vector<uint8_t>& to) {
        for (int s = 0; s < STREAMS; ++s) {
            numbers_.of[s][size_t(i)] = 0;
            symbols[s][i] = uint8_t(s == 0 ? int32_t(ESCAPE) : is_centred(c.kind, s) ? MIDDLE : 0);
        }
        for (const auto& axis : now_.axes) {
            uint32_t x = folded(axis[size_t(c.begin + i)]);
            for (; x >= 128; x >>= 7) to.push_back(uint8_t(x | 128));
            to.push_back(uint8_t(x));
        }
    }

    static constexpr int64_t RAW_SAMPLES = 3, RAW_ATOMS = 2000;  // pairs of frames, atoms of each class
    static constexpr int64_t MANY_FRAMES = 32;

    const Steps& steps_ = steps();
    const uint32_t* x_;
    int64_t n_frames_, n_atoms_;
    Chunk chunk_;
    Vectors now_, before_;
    Numbers numbers_;
    std::vector<uint8_t> raw_;  // low bits of a frame
    std::vector<std::vector<std::array<uint32_t, 256>>> counts_;
};

}  // namespace
}  // namespace rigid

RigidBytes encode_rigid(const int32_t* deltas, int64_t n_frames, int64_t n_atoms) {
    const int64_t width = 3 * n_atoms;
    static thread_local std::vector<uint32_t> x;  // kept: new memory takes time
    if (int64_t(x.size()) < n_frames * width) x.resize(size_t(n_frames * width));
    uint32_t* to = x.data();
    for (int64_t i = 0; i < width; ++i) to[i] = uint32_t(deltas[i]);
    for (int64_t i = width; i < n_frames * width; ++i)
        to[i] = to[i - width] + uint32_t(deltas[i]);
    return rigid::Encoder(x.data(), n_frames, n_atoms).encode();
}

}  // namespace mdio

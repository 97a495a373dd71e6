// Chunks of `encode_rigid` back to coordinates.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "codes.h"
#include "kernels.h"
#include "rigid_part.h"
#include "rigid_write.h"

namespace mdio {
namespace rigid {
namespace {

[[noreturn]] void fail(const char* what) { throw std::invalid_argument(what); }

struct Cursor {
    const uint8_t* next;
    const uint8_t* end;

    const uint8_t* take(int64_t n) {
        if (end - next < n) fail("a frame ends too early");
        next += n;
        return next - n;
    }
};

// Where a frame lies.
struct Frame {
    const uint8_t *begin, *words, *escaped, *end;
};

// A frame that is being decoded, and its memory.
struct Room {
    Vectors vectors{0};
    // Of a block; entropy coder and arithmetic go a little beyond.
    int32_t symbols[STREAMS][BLOCK] = {}, contexts[BLOCK] = {}, raw[STREAMS][BLOCK] = {}, zeros[BLOCK] = {};
    Words words{};
    Cursor low{}, escaped{};
    const uint8_t* bits[STREAMS] = {};  // of a class


    void begin(const Frame& frame, int64_t lanes) {
        low = {frame.begin, frame.words};
        escaped = {frame.escaped, frame.end};
        Cursor states{frame.words, frame.escaped};
        for (int64_t lane = 0; lane < lanes; ++lane) {
            const uint8_t* from = states.take(4);
            words.states[lane] = 0;
            for (int i = 0; i < 4; ++i) words.states[lane] |= uint32_t(from[i]) << (8 * i);
        }
        words.next = states.next;
        words.end = states.end;
    }
    void end(int64_t lanes) const {
        const bool done = std::all_of(words.states, words.states + lanes,
                                      [](uint32_t x) { return x == LOWEST; });
        if (!done || words.next != words.end || escaped.next != escaped.end)
            fail("the words of a frame do not end where they should");
    }
};

MDIO_INLINE uint64_t bits_at(const uint8_t* from, int64_t nbytes, int64_t bit) {
    uint64_t word = 0;
    const int64_t byte = bit / 8;
    std::memcpy(&word, from + byte, size_t(std::min<int64_t>(8, nbytes - byte)));
    return word >> (bit % 8);
}

void unpack_some(const uint8_t* from, int64_t nbytes, uint32_t width, int64_t first, int64_t n,
                 int32_t* to) {
    if (width == 0) return void(std::fill(to + first, to + n, 0));
    const uint64_t mask = (uint64_t(1) << width) - 1;
    for (int64_t i = first; i < n; ++i)
        to[i] = int32_t(bits_at(from, nbytes, i * width) & mask);
}

#if MDIO_X86
// Eight numbers lie in the first 16 of `width` bytes, at most.
MDIO_TARGET("avx2")
int64_t unpack_avx2(const uint8_t* from, int64_t nbytes, uint32_t width, int64_t n, int32_t* to) {
    alignas(32) uint8_t bytes[32];  // that each number needs, of which those behind the last are zero
    alignas(32) int32_t shifts[8];
    for (uint32_t i = 0; i < 32; ++i) {
        const uint32_t byte = i / 4 * width / 8 + i % 4;
        bytes[i] = byte < 16 ? uint8_t(byte) : 255;
        shifts[i / 4] = int32_t(i / 4 * width % 8);
    }
    const auto pick = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
    const auto shift = _mm256_load_si256(reinterpret_cast<const __m256i*>(shifts));
    const auto mask = _mm256_set1_epi32(int32_t((1u << width) - 1));
    int64_t i = 0;
    for (const uint8_t* at = from; i + 8 <= n && at + 16 <= from + nbytes; i += 8, at += width) {
        const auto all = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
        const auto x = _mm256_srlv_epi32(_mm256_shuffle_epi8(all, pick), shift);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_and_si256(x, mask));
    }
    return i;
}
#endif

void unpack(const uint8_t* bytes, int64_t nbytes, uint32_t width, int64_t n, int32_t* to) {
    int64_t first = 0;
#if MDIO_X86
    if (has_avx2() && width && width <= MOST_RAW) first = unpack_avx2(bytes, nbytes, width, n, to);
#endif
    unpack_some(bytes, nbytes, width, first, n, to);
}

// A signed number in groups of seven bits.
int32_t long_number(Cursor& from) {
    uint64_t folded = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        const uint8_t byte = *from.take(1);
        folded |= uint64_t(byte & 127) << shift;
        if (byte < 128) break;
    }
    return int32_t(uint32_t(folded >> 1) ^ (0u - uint32_t(folded & 1)));
}

Part part_of(const Chunk& chunk, const Class& c, int64_t begin, int64_t n, Room& room, const Room& before) {
    const auto at = size_t(c.begin + begin);
    Part p{c.kind, n, {}, float(c.other), {}, {}, &room.vectors.axes[0][at],
           &room.vectors.axes[1][at], &room.vectors.axes[2][at], {}, {}, chunk.seconds.data() + at,
           chunk.in_row.data() + at / GROUP, chunk.squares.data() + at};
    for (int stream = 0; stream < STREAMS; ++stream) {
        const uint32_t bits = c.raw[size_t(stream)];
        p.raw_bits[stream] = int(bits);
        p.symbols[stream] = room.symbols[stream];
        p.raw[stream] = bits ? room.raw[stream] : room.zeros;
        p.before[stream] = &before.vectors.axes[stream][at];
        p.all[stream] = room.vectors.axes[stream].data();
        const uint8_t* from = room.bits[stream] + begin / 8 * bits;
        // Eight are loaded from what follows too.
        if (bits) unpack(from, room.escaped.end - from, bits, n, room.raw[stream]);
    }
    return p;
}

void take_escaped(const Part& p, Cursor& escaped) {
    for (int64_t i = 0; i < p.n; ++i) {
        if (p.symbols[0][i] != int32_t(ESCAPE)) continue;
        for (int32_t* axis : {p.x, p.y, p.z}) axis[i] = long_number(escaped);
    }
}

// `rooms`: of frames that follow one another; `before`: of the one before the first.
void decode_block(const Chunk& chunk, const Class& c, int64_t begin, int64_t n, Room* const rooms[],
                  const Room* before, int n_frames) {
    Part parts[AT_ONCE];
    for (int k = 0; k < n_frames; ++k)
        parts[k] = part_of(chunk, c, begin, n, *rooms[k], k ? *rooms[k - 1] : *before);
    const Steps& step = steps();
    const Decode decode_words = decoder(chunk.lanes);
    const auto decode = [&](int stream, void (*contexts)(const Part&, int32_t*)) {
        InFrame in[AT_ONCE] = {};
        for (int k = 0; k < n_frames; ++k) {
            if (contexts) contexts(parts[k], rooms[k]->contexts);
            in[k] = {&rooms[k]->words, contexts ? rooms[k]->contexts : nullptr, rooms[k]->symbols[stream]};
        }
        decode_words({chunk.lanes, c.table(stream), USES[c.kind][stream].bits, n}, in, n_frames);
    };
    const bool has_contexts = c.kind >= SPHERE;
    decode(0, c.kind == CIRCLE ? step.contexts[0] : nullptr);
    decode(1, has_contexts ? step.contexts[1] : nullptr);
    decode(2, has_contexts ? step.contexts[2] : nullptr);
    for (int k = 0; k < n_frames; ++k)
        if (step.finish(parts[k])) take_escaped(parts[k], rooms[k]->escaped);
}

// Vectors of the first frame, as they are.
void begin_class(const Class& c, Room& room) {
    for (size_t axis = 0; axis < 3; ++axis) {
        int32_t* to = &room.vectors.axes[axis][size_t(c.begin)];
        const int64_t nbytes = (c.n * c.widths[axis] + 7) / 8;
        unpack(room.low.take(nbytes), nbytes, c.widths[axis], c.n, to);
        for (int64_t i = 0; i < c.n; ++i) to[i] = int32_t(uint32_t(to[i]) + uint32_t(c.lowest[axis]));
    }
}

// The first `n_classes` classes of some frames.
void decode_frames(const Chunk& chunk, const Frame* frames, bool is_first, Room* const rooms[],
                   const Room* before, int n_frames, size_t n_classes) {
    for (int k = 0; k < n_frames; ++k) rooms[k]->begin(frames[k], chunk.lanes);
    for (size_t number = 0; number < n_classes; ++number) {
        const Class& c = chunk.classes[number];
        const bool is_begun = is_first && is_temporal(c.kind);
        if (is_begun) begin_class(c, *rooms[0]);
        Room* const* some = rooms + is_begun;
        const int n_some = n_frames - is_begun;
        for (int k = 0; k < n_some; ++k)
            for (size_t stream = 0; stream < STREAMS; ++stream)
                some[k]->bits[stream] = some[k]->low.take((c.n * c.raw[stream] + 7) / 8);
        for (int64_t begin = 0; n_some && begin < c.n; begin += BLOCK)
            decode_block(chunk, c, begin, std::min(BLOCK, c.n - begin), some, is_begun ? rooms[0] : before, n_some);
    }
    for (int k = 0; k < n_frames && n_classes == chunk.classes.size(); ++k) rooms[k]->end(chunk.lanes);
}

std::vector<Frame> frames_of(const Chunk& chunk, const uint8_t* data, int64_t nbytes,
                             int64_t n_frames) {
    if (nbytes / 8 < n_frames) fail("the sizes of the frames are not all there");
    Cursor all{data + 8 * n_frames, data + nbytes};
    std::vector<Frame> frames;
    for (int64_t f = 0; f < n_frames; ++f) {
        uint32_t sizes[2] = {};
        for (int i = 0; i < 8; ++i) sizes[i / 4] |= uint32_t(data[8 * f + i]) << (8 * (i % 4));
        const uint8_t* begin = all.take(chunk.raw_nbytes(f == 0));
        const uint8_t* words = all.take(sizes[0]);
        const uint8_t* escaped = all.take(sizes[1]);
        frames.push_back({begin, words, escaped, all.next});
    }
    if (all.next != all.end) fail("there are bytes behind the last frame");
    return frames;
}

// What some atoms need: the atoms up to the last of them, and classes up to the last that they or their
// parents are of.
struct Needs {
    int64_t n_atoms = 0;
    size_t n_classes = 0;

    explicit Needs(const Chunk& chunk) : n_atoms(chunk.n_atoms), n_classes(chunk.classes.size()) {}
    Needs(const Chunk& chunk, const int64_t* atoms, int64_t n) {
        std::vector<bool> seen(size_t(chunk.n_atoms));
        for (int64_t i = 0; i < n; ++i) {
            n_atoms = std::max(n_atoms, atoms[i] + 1);
            for (int64_t at = atoms[i]; at >= 0 && !seen[size_t(at)]; at = chunk.parents[size_t(at)]) {
                seen[size_t(at)] = true;
                n_classes = std::max(n_classes, size_t(chunk.atoms.classes[size_t(at)]) + 1);
            }
        }
    }
};

template <class Code>
void decode(const RigidChunk& from, const Code& code, const Output& out, const int64_t* atoms,
            int64_t first, int64_t last) {
    const Chunk chunk = parsed(from.description, from.description_nbytes, from.n_atoms);
    const auto frames = frames_of(chunk, from.data, from.nbytes, from.n_frames);
    static thread_local Room one, another;  // kept: new memory costs as much as a tenth of decoding
    Room* const rooms[AT_ONCE] = {&one, &another};
    for (Room* room : rooms) room->vectors.fit(chunk.n_slots());
    const Needs needs = atoms ? Needs(chunk, atoms, out.n_atoms) : Needs(chunk);
    Writer writer(chunk, needs.n_atoms);
    std::vector<char> whole[AT_ONCE];  // frames of which some atoms are asked for
    const auto nbytes = size_t(12 * needs.n_atoms);
    if (atoms)
        for (auto& room : whole) room.resize(nbytes);
    for (int64_t f = chunk.is_temporal ? 0 : first; f < last; f += AT_ONCE) {
        const int n = int(std::min<int64_t>(AT_ONCE, last - f));
        // Of frames that are not asked for, the next ones go by some classes.
        const bool is_asked = f + n > first;
        const size_t n_classes = is_asked ? needs.n_classes : std::min(needs.n_classes, chunk.n_until_temporal());
        decode_frames(chunk, &frames[size_t(f)], f == 0, rooms, &another, n, n_classes);
        if (!is_asked) continue;
        char* to[AT_ONCE] = {};
        for (int k = 0; k < n; ++k)
            if (f + k >= first) to[k] = atoms ? whole[k].data() : out.data + (f + k - first) * out.stride;
        const Vectors* vectors[AT_ONCE] = {&one.vectors, n == AT_ONCE ? &another.vectors : &one.vectors};
        writer.write(vectors, code, to);
        for (int k = 0; k < n; ++k)
            for (int64_t i = 0; atoms && to[k] && i < out.n_atoms; ++i)
                std::memcpy(out.data + (f + k - first) * out.stride + 12 * i, to[k] + 12 * atoms[i], 12);
    }
}

}  // namespace
}  // namespace rigid

void decode_rigid_step(const RigidChunk& from, double step, const Output& out,
                       const int64_t* atoms, int64_t first, int64_t last) {
    rigid::decode(from, Step{step}, out, atoms, first, last);
}

void decode_rigid_xtc(const RigidChunk& from, double precision, const Output& out,
                      const int64_t* atoms, int64_t first, int64_t last) {
    rigid::decode(from, xtc(float(precision)), out, atoms, first, last);
}

}  // namespace mdio

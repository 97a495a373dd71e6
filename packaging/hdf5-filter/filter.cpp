// HDF5's filter of the integers that mdio stores in H5MD files: it reads them, and writes none.
//
// No Python in it, and nothing of HDF5: what HDF5 wants of a plugin is declared below, as it has
// been since version 1.8.11. docs/formats.md says what a chunk looks like; first parts are small,
// and packed by Blosc with LZ4, of which the few lines are here that undo it.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "mdio_codecs.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int FILTER = MDIO_FILTER;  // a library has one filter, and older files another number
constexpr unsigned VERSION = 1, REVERSE = 0x0100;
constexpr size_t HEADER = 32, BLOSC_HEADER = 16;
constexpr int RAW = 0, PACKED = 5, PACKED_END = 9, RIGID_END = 11;
constexpr size_t DESCRIPTION_NBYTES = 1 << 20;  // the most that one takes, but for 4 bytes an atom

using Bytes = std::vector<uint8_t>;

void require(bool holds) {
    if (!holds) throw std::invalid_argument("no chunk of mdio's");
}

uint32_t number_at(const uint8_t* from) {
    return from[0] | from[1] << 8 | from[2] << 16 | uint32_t(from[3]) << 24;
}

struct Span {
    const uint8_t* data;
    size_t nbytes;

    Span part(size_t begin, size_t n) const {
        require(begin <= nbytes && n <= nbytes - begin);
        return {data + begin, n};
    }
    uint32_t number(size_t at) const { return number_at(part(at, 4).data); }
};

// A length of LZ4: 15 goes on in bytes, of which 255 go on too.
size_t length(const uint8_t*& from, const uint8_t* end, size_t n) {
    uint8_t more = n == 15 ? 255 : 0;
    while (more == 255) {
        require(from < end);
        n += more = *from++;
    }
    return n;
}

void undo_lz4(Span block, uint8_t* to, size_t n) {
    const uint8_t *from = block.data, *end = from + block.nbytes;
    uint8_t *const begin = to, *const stop = to + n;
    while (true) {
        require(from < end);
        const uint8_t token = *from++;
        const size_t literals = length(from, end, token >> 4);
        require(literals <= size_t(end - from) && literals <= size_t(stop - to));
        std::memcpy(to, from, literals);
        to += literals;
        from += literals;
        if (from == end) return require(to == stop);
        require(end - from >= 2);
        const size_t back = size_t(from[0] | from[1] << 8);
        from += 2;
        const size_t matched = length(from, end, token & 15) + 4;
        require(back > 0 && back <= size_t(to - begin) && matched <= size_t(stop - to));
        for (size_t k = 0; k < matched; ++k, ++to) *to = to[-std::ptrdiff_t(back)];
    }
}

// What a Blosc buffer of at most `most` bytes holds.
Bytes undo_blosc(Span data, size_t most) {
    const uint8_t flags = data.part(0, BLOSC_HEADER).data[2];
    const size_t itemsize = std::max<size_t>(1, data.data[3]);
    const size_t n = data.number(4), block_nbytes = data.number(8);
    require(n <= most && data.number(12) == data.nbytes);
    Bytes found(n);
    if (flags & 2) {  // it got no smaller
        std::memcpy(found.data(), data.part(BLOSC_HEADER, n).data, n);
        return found;
    }
    require(flags >> 5 == 1 && !(flags & 4) && block_nbytes > 0);
    Bytes room(std::min(n, block_nbytes));
    for (size_t begin = 0, block = 0; begin < n; begin += block_nbytes, ++block) {
        const size_t here = std::min(block_nbytes, n - begin);
        const size_t streams = flags & 16 || here < block_nbytes ? 1 : itemsize;
        require(here % streams == 0);
        size_t at = data.number(BLOSC_HEADER + 4 * block);
        for (size_t k = 0; k < streams; ++k) {
            const Span stream = data.part(at + 4, data.number(at));
            uint8_t* to = room.data() + k * (here / streams);
            if (stream.nbytes == here / streams)
                std::memcpy(to, stream.data, stream.nbytes);
            else
                undo_lz4(stream, to, here / streams);
            at += 4 + stream.nbytes;
        }
        if (flags & 1)
            mdio_unshuffle(room.data(), here, itemsize, found.data() + begin);
        else
            std::memcpy(found.data() + begin, room.data(), here);
    }
    return found;
}

// Fills `out`, all zeros, whose frames lie `stride` bytes apart, with a chunk of at most so many.
void decode(Span data, int64_t most_frames, int64_t most_atoms, char* out) {
    const int mode = data.part(0, HEADER).data[4], filled = data.data[5];
    const int64_t n_frames = data.number(8), n_atoms = data.number(12);
    const bool fits = n_frames >= 1 && n_frames <= most_frames;
    require(!std::memcmp(data.data, "mdq1", 4) && fits && n_atoms >= 1 && n_atoms <= most_atoms);
    const Span head = data.part(HEADER, data.number(24));
    const Span rest = data.part(HEADER + head.nbytes, data.number(28));
    require(HEADER + head.nbytes + rest.nbytes == data.nbytes);
    const mdio_output to{out, n_atoms, 12 * most_atoms};
    if (mode == RAW) {
        const size_t row = size_t(12 * n_atoms), n = row * size_t(n_frames);
        const Bytes floats = undo_blosc(head, n + 32);
        require(floats.size() >= n);
        for (int64_t f = 0; f < n_frames; ++f)
            std::memcpy(out + f * to.stride, floats.data() + size_t(f) * row, row);
        return;
    }
    double step;
    std::memcpy(&step, data.data + 16, 8);
    require(mode >= PACKED && mode < RIGID_END && std::isfinite(step) && step > 0);
    const mdio_coding coding{step, mode % 2 == 0};
    const mdio_selection all{nullptr, 0, n_frames};
    const std::unique_ptr<mdio_memory, decltype(&mdio_memory_free)> memory{mdio_memory_new(), mdio_memory_free};
    require(memory != nullptr);
    if (mode >= PACKED_END) {
        const Bytes described = undo_blosc(head, size_t(4 * n_atoms) + DESCRIPTION_NBYTES + 8);
        require(filled < 8 && described.size() > size_t(filled));
        const mdio_rigid from{described.data(), int64_t(described.size()) - filled, rest.data, int64_t(rest.nbytes),
                              n_frames, n_atoms};
        return require(mdio_rigid_decode(memory.get(), &from, coding, &all, &to) == MDIO_OK);
    }
    const Bytes kept = mode < PACKED + 2 ? Bytes() : undo_blosc(head, size_t(n_atoms) + 8);
    require(mode < PACKED + 2 || kept.size() >= size_t(n_atoms));
    const mdio_packed from{rest.data, int64_t(rest.nbytes), kept.empty() ? nullptr : kept.data(), n_frames, n_atoms};
    require(mdio_unpack(memory.get(), &from, coding, &all, &to) == MDIO_OK);
}

// As HDF5 calls it: returns how many bytes are in `buffer`, 0 for a failure.
size_t filter(unsigned flags, size_t n_values, const unsigned values[], size_t nbytes,
              size_t* room_nbytes, void** buffer) {
    if (!(flags & REVERSE) || n_values < 3 || values[0] != VERSION) return 0;
    const uint64_t frame_nbytes = 12 * uint64_t(values[2]);  // HDF5's chunks have up to 4 GiB
    if (!values[1] || !values[2] || frame_nbytes > UINT32_MAX / values[1]) return 0;
    const size_t n = size_t(frame_nbytes * values[1]);
    void* out = std::calloc(n, 1);
    if (!out) return 0;
    try {
        decode({static_cast<const uint8_t*>(*buffer), nbytes}, values[1], values[2],
               static_cast<char*>(out));
    } catch (const std::exception&) {
        std::free(out);
        return 0;
    }
    std::free(*buffer);
    *buffer = out;
    return *room_nbytes = n;
}

struct Class {  // H5Z_class2_t
    int version, id;
    unsigned encodes, decodes;
    const char* name;
    void *can_apply, *set_local;
    size_t (*filter)(unsigned, size_t, const unsigned[], size_t, size_t*, void**);
};
// It says that it encodes, for HDF5 would else make no dataset that has the filter. What programs
// write through HDF5 is stored without it, as HDF5 does where an optional filter fails.
const Class CLASS{1, FILTER, 1, 1, "mdio: integers of positions", nullptr, nullptr, filter};

}  // namespace

EXPORT int H5PLget_plugin_type() { return 0; }  // of filters
EXPORT const void* H5PLget_plugin_info() { return &CLASS; }

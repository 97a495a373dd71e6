// What an XTC frame consists of. Every function here throws std::invalid_argument, with a message
// that says what was found, where bytes are not what the format allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace mdio::xtc {

// Bytes that must be readable (whatever they hold) beyond the last frame of a buffer: the decoder
// checks its place once a group, and a group has at most 96 + 6 + 8 * 72 bits.
constexpr std::size_t PADDING = 128;

// The longest header; that of an uncompressed frame has 56 bytes, the usual one 92.
constexpr std::size_t HEADER_NBYTES = 96;

// Frames of up to so many atoms hold plain floats.
constexpr std::int64_t UNCOMPRESSED_ATOMS = 9;

// Sizes that a small difference may have along each axis; three of size SMALL_SIZES[i] take i bits.
// xdrfile goes to index N_SMALL, one beyond its table, where atoms are very far apart (more than
// 2,600 nm at 1000 steps a nm): frames that say so are read unless they have a run of that size,
// which would be of whatever followed the table in the writer's memory.
constexpr int FIRST_SMALL = 9;
constexpr int N_SMALL = 73;
constexpr std::int32_t SMALL_SIZES[N_SMALL + 1] = {
    0,       0,       0,       0,       0,       0,        0,        0,        0,       8,
    10,      12,      16,      20,      25,      32,       40,       50,       64,      80,
    101,     128,     161,     203,     256,     322,      406,      512,      645,     812,
    1024,    1290,    1625,    2048,    2580,    3250,     4096,     5060,     6501,    8192,
    10321,   13003,   16384,   20642,   26007,   32768,    41285,    52015,    65536,   82570,
    104031,  131072,  165140,  208063,  262144,  330280,   416127,   524287,   660561,  832255,
    1048576, 1321122, 1664510, 2097152, 2642245, 3329021,  4194304,  5284491,  6658042, 8388607,
    10568983, 13316085, 16777216, 0};

// Sizes along an axis above this make the axes be stored one by one instead of as one number.
constexpr std::uint32_t LARGEST_JOINT_SIZE = 0xffffff;

struct Header {
    std::int64_t n_atoms;
    std::int64_t step;
    double time_ps;
    float vectors_nm[9];
    float precision;  // steps a nm; 0 where the coordinates are floats
    std::int32_t lowest[3];
    std::uint32_t sizes[3];  // highest - lowest + 1
    int small;
    std::uint64_t packed_nbytes;  // without padding
    std::size_t begin;            // of the coordinates
    std::uint64_t nbytes;         // of the whole frame
};

// Reads the header of a frame of which `nbytes` are there. `n_atoms` is what it has to say, 0 any.
Header parse_header(const std::uint8_t* frame, std::size_t nbytes, std::int64_t n_atoms);

// Atoms in ascending order, and where each goes; all atoms in order where `atoms` is null, each in
// its place of `atoms` where `targets` is null.
struct Selection {
    const std::int64_t* atoms = nullptr;
    const std::int64_t* targets = nullptr;
    std::int64_t n = 0;
};

// Decodes frames, one after the other.
class Decoder {
  public:
    Decoder();
    ~Decoder();

    // Decodes the coordinates (angstrom) of a frame of exactly `nbytes`, which PADDING readable
    // bytes follow, into `out`, which holds three floats for each wanted atom.
    Header decode(const std::uint8_t* frame, std::size_t nbytes, std::int64_t n_atoms,
                  const Selection& selection, float* out);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// Appends a frame to `out`; `positions` in nm.
void encode_frame(const float* positions, std::int64_t n_atoms, const float* vectors_nm, float time,
                  std::int32_t step, float precision, std::string& out);

// "frame 3 at byte 456: " + what
std::string located(std::int64_t frame, std::int64_t offset, const std::string& what);

// What is wrong with a frame of `found` bytes that should have `expected`.
std::string wrong_nbytes(std::uint64_t found, std::uint64_t expected);

}  // namespace mdio::xtc

#include <cmath>
#include <stdexcept>

#include "bits.h"
#include "format.h"

namespace mdio::xtc {

namespace {

constexpr std::int32_t MAGIC = 1995;
constexpr std::int32_t MAGIC_64BIT = 2023;
constexpr std::size_t COMMON_NBYTES = 56;

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

std::int32_t load_int(const std::uint8_t* p) { return static_cast<std::int32_t>(load_be32(p)); }

void require(std::size_t nbytes, std::size_t needed) {
    if (nbytes < needed)
        fail("the file ends after " + std::to_string(nbytes) + " bytes of the frame's header");
}

}  // namespace

std::string located(std::int64_t frame, std::int64_t offset, const std::string& what) {
    return "frame " + std::to_string(frame) + " at byte " + std::to_string(offset) + ": " + what;
}

std::string wrong_nbytes(std::uint64_t found, std::uint64_t expected) {
    return "it has " + std::to_string(found) + " bytes, but the next one is " +
           std::to_string(expected) + " bytes on";
}

Header parse_header(const std::uint8_t* frame, std::size_t nbytes, std::int64_t n_atoms) {
    Header header{};
    require(nbytes, COMMON_NBYTES);
    const std::int32_t magic = load_int(frame);
    if (magic != MAGIC && magic != MAGIC_64BIT)
        fail("it begins with " + std::to_string(magic) +
             ", but an XTC frame begins with 1995 or 2023");
    header.n_atoms = load_int(frame + 4);
    if (header.n_atoms < 1)
        fail("its header claims " + std::to_string(header.n_atoms) + " atoms");
    const std::int32_t n_again = load_int(frame + 52);
    if (n_again != header.n_atoms)
        fail("its header claims " + std::to_string(header.n_atoms) + " atoms first and then " +
             std::to_string(n_again));
    if (n_atoms != 0 && header.n_atoms != n_atoms)
        fail("it has " + std::to_string(header.n_atoms) + " atoms, but the first one has " +
             std::to_string(n_atoms));
    header.step = load_int(frame + 8);
    header.time_ps = load_float(frame + 12);
    for (int i = 0; i < 9; ++i) header.vectors_nm[i] = load_float(frame + 16 + 4 * i);

    if (header.n_atoms <= UNCOMPRESSED_ATOMS) {
        header.begin = COMMON_NBYTES;
        header.nbytes = COMMON_NBYTES + 12 * static_cast<std::uint64_t>(header.n_atoms);
        return header;
    }
    header.begin = magic == MAGIC ? 92 : 96;
    require(nbytes, header.begin);
    header.precision = load_float(frame + 56);
    if (!(header.precision > 0 && std::isfinite(header.precision)))
        fail("its precision is " + std::to_string(header.precision));
    for (int axis = 0; axis < 3; ++axis) {
        header.lowest[axis] = load_int(frame + 60 + 4 * axis);
        const std::int32_t highest = load_int(frame + 72 + 4 * axis);
        const std::int64_t size = std::int64_t(highest) - header.lowest[axis] + 1;
        if (size < 1) fail("its highest coordinate is below its lowest");
        if (size > 0x7fffffff) fail("its coordinates span more than 31 bits");  // none are written
        header.sizes[axis] = static_cast<std::uint32_t>(size);
    }
    header.small = load_int(frame + 84);
    if (header.small < FIRST_SMALL || header.small > N_SMALL)
        fail("its index of the small size is " + std::to_string(header.small) +
             ", but it must be from 9 to 73");
    header.packed_nbytes = magic == MAGIC ? load_be32(frame + 88) : load_be64(frame + 88);
    // An atom takes two bits at least, and 102 (3 x 32 + 6) at most; so what a hostile header
    // makes the caller allocate is in proportion to the file.
    const std::uint64_t n = static_cast<std::uint64_t>(header.n_atoms);
    if (header.packed_nbytes > 13 * n || 4 * header.packed_nbytes < n)
        fail("its header claims " + std::to_string(header.packed_nbytes) + " bytes for " +
             std::to_string(n) + " atoms");
    header.nbytes = header.begin + (header.packed_nbytes + 3) / 4 * 4;
    return header;
}

}  // namespace mdio::xtc

// libFuzzer target for the XTC module: `make fuzz`. The first byte chooses what the others are.
// Every buffer is on the heap and exactly as large as promised, so that ASan sees a byte too far.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "file.h"
#include "format.h"
#include "run.h"

using namespace mdio::xtc;

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::int64_t MOST_ATOMS = 1 << 20;

void require(bool holds) {
    if (!holds) __builtin_trap();
}

Bytes padded(const std::uint8_t* data, std::size_t nbytes, std::uint8_t fill) {
    Bytes bytes(nbytes + PADDING, fill);
    if (nbytes) std::memcpy(bytes.data(), data, nbytes);
    return bytes;
}

// One frame: what decodes does so whatever lies behind it, and a selection gives the same bits.
void decode_frame(const std::uint8_t* data, std::size_t nbytes) {
    Decoder decoder;
    const Header header = parse_header(data, nbytes, 0);
    if (header.n_atoms > MOST_ATOMS) return;
    const auto n = static_cast<std::size_t>(header.n_atoms);
    std::vector<float> all(3 * n), again(3 * n);
    decoder.decode(padded(data, nbytes, 0).data(), nbytes, header.n_atoms, {}, all.data());
    decoder.decode(padded(data, nbytes, 0xff).data(), nbytes, header.n_atoms, {}, again.data());
    require(std::memcmp(all.data(), again.data(), 12 * n) == 0);

    const std::size_t stride = 1 + data[nbytes - 1] % 7;
    std::vector<std::int64_t> atoms, targets;
    for (std::size_t i = data[nbytes - 1] % n; i < n; i += stride)
        atoms.push_back(static_cast<std::int64_t>(i));
    for (std::size_t i = atoms.size(); i-- > 0;) targets.push_back(static_cast<std::int64_t>(i));
    const Selection some{atoms.data(), targets.data(), static_cast<std::int64_t>(atoms.size())};
    std::vector<float> picked(3 * atoms.size());
    decoder.decode(padded(data, nbytes, 0).data(), nbytes, header.n_atoms, some, picked.data());
    for (std::size_t i = 0; i < atoms.size(); ++i)
        require(std::memcmp(&picked[3 * static_cast<std::size_t>(targets[i])],
                            &all[3 * static_cast<std::size_t>(atoms[i])], 12) == 0);
}

// A whole file: found frames lie within it, and their headers are read as the scan read them.
void scan_file(const std::uint8_t* data, std::size_t nbytes) {
    static const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    require(ftruncate(fd, 0) == 0);
    require(pwrite(fd, data, nbytes, 0) == static_cast<ssize_t>(nbytes));
    const auto end = static_cast<std::int64_t>(nbytes);
    Frames frames = scan(fd, end);
    const auto n_frames = static_cast<std::int64_t>(frames.offsets.size());
    if (n_frames == 0 || frames.n_atoms > MOST_ATOMS || n_frames * frames.n_atoms > MOST_ATOMS)
        return;
    frames.offsets.push_back(end);
    const auto n = static_cast<std::size_t>(n_frames);
    std::vector<float> vectors(9 * n), positions(3 * n * static_cast<std::size_t>(frames.n_atoms));
    std::vector<double> time(n);
    std::vector<std::int64_t> step(n);
    read_headers(fd, 0, frames.offsets.data(), n_frames, frames.n_atoms, vectors.data(),
                 time.data(), step.data());
    const Bytes bytes = padded(data, nbytes, 0);
    Run run{};
    run.data = bytes.data();
    run.offsets = frames.offsets.data();
    run.n_frames = n_frames;
    run.n_atoms = frames.n_atoms;
    run.positions = positions.data();
    run.stride = 3 * frames.n_atoms;
    run.vectors_nm = vectors.data();
    run.time_ps = time.data();
    run.step = step.data();
    decode_run(run, 1);
}

// Coordinates: what is encoded decodes to within half a step, and that encodes to itself.
void round_trip(const std::uint8_t* data, std::size_t nbytes) {
    static const float PRECISIONS[] = {1.0f, 100.0f, 1000.0f, 12345.0f, 1e5f, 1e6f};
    if (nbytes < 2) return;
    const float precision = PRECISIONS[data[0] % 6];
    const bool is_walk = data[1] % 2;  // else any floats
    const std::size_t each = is_walk ? 2 : 4, n = (nbytes - 2) / (3 * each);
    if (n == 0) return;
    std::vector<float> nm(3 * n);
    double at[3] = {0, 0, 0};
    for (std::size_t i = 0; i < 3 * n; ++i) {
        if (is_walk) {
            std::int16_t jump;
            std::memcpy(&jump, data + 2 + 2 * i, 2);
            at[i % 3] += jump * (data[1] & 64 ? 1.0 : 1e-4);
            nm[i] = static_cast<float>(at[i % 3]);
        } else {
            std::memcpy(&nm[i], data + 2 + 4 * i, 4);
        }
    }
    const float box[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    std::string packed;
    const auto n_atoms = static_cast<std::int64_t>(n);
    encode_frame(nm.data(), n_atoms, box, 1, 2, precision, packed);
    std::vector<float> out(3 * n);
    const Bytes bytes =
        padded(reinterpret_cast<const std::uint8_t*>(packed.data()), packed.size(), 0);
    try {
        Decoder().decode(bytes.data(), packed.size(), n_atoms, {}, out.data());
    } catch (const std::invalid_argument&) {
        require(false);
    }
    if (n_atoms <= UNCOMPRESSED_ATOMS) return;
    for (std::size_t i = 0; i < 3 * n; ++i) {
        const double x = 10 * double(nm[i]);
        require(std::fabs(out[i] - x) <= 5 / double(precision) + 5e-7 * std::fabs(x));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t nbytes) {
    if (nbytes < 2) return 0;
    const std::vector<std::uint8_t> rest(data + 1, data + nbytes);
    try {
        switch (data[0] % 3) {
            case 0: decode_frame(rest.data(), rest.size()); break;
            case 1: scan_file(rest.data(), rest.size()); break;
            default: round_trip(rest.data(), rest.size());
        }
    } catch (const std::invalid_argument&) {
        // Bytes that are no XTC, or coordinates that do not fit: said so, which is what is wanted.
    }
    return 0;
}

// How the sanitised harness hands bytes to the decoder.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "../../mdio/native/codecs/cpu.h"
#include "../../mdio/native/xtc/format.h"

namespace xtc_test {

// Decodes `nbytes` as one frame: all atoms, then some, with the instructions of newer processors
// and without, which has to come to the same. The buffer is exactly as large as the
// decoder asks for, so that a sanitiser sees every byte read or written beyond. Returns whether
// the frame decoded.
inline bool decode_everything(const std::uint8_t* bytes, std::size_t nbytes) {
    using namespace mdio::xtc;
    const std::unique_ptr<std::uint8_t[]> data(new std::uint8_t[nbytes + PADDING]);
    std::memcpy(data.get(), bytes, nbytes);
    std::memset(data.get() + nbytes, 0xa5, PADDING);
    try {
        const std::unique_ptr<std::uint8_t[]> bare(new std::uint8_t[nbytes]);
        std::memcpy(bare.get(), bytes, nbytes);
        const std::int64_t n_atoms = parse_header(bare.get(), nbytes, 0).n_atoms;
        if (n_atoms > 1000000) return false;
        const std::unique_ptr<float[]> out(new float[3 * n_atoms]), plain(new float[3 * n_atoms]);
        Decoder decoder;
        bool decoded = true, decoded_plain = true;
        try {
            decoder.decode(data.get(), nbytes, n_atoms, {}, out.get());
        } catch (const std::invalid_argument&) {
            decoded = false;
        }
        mdio::plain_only = true;
        try {
            decoder.decode(data.get(), nbytes, n_atoms, {}, plain.get());
        } catch (const std::invalid_argument&) {
            decoded_plain = false;
        }
        mdio::plain_only = false;
        if (decoded != decoded_plain ||
            (decoded && std::memcmp(out.get(), plain.get(), 12 * n_atoms) != 0))
            std::abort();
        const std::vector<std::int64_t> atoms{0, n_atoms / 2, n_atoms - 1}, targets{2, 0, 1};
        const std::unique_ptr<float[]> some(new float[9]);
        decoder.decode(data.get(), nbytes, n_atoms, {atoms.data(), targets.data(), 3}, some.get());
        return decoded;
    } catch (const std::invalid_argument&) {
        return false;
    }
}

}  // namespace xtc_test

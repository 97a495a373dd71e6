// Encodes frames, damages them in every way that pays, and decodes them. To be built with
// -fsanitize=address,undefined (tests/test_xtc_sanitised.py does); prints how many decoded.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "mutate.h"

namespace {

using namespace mdio::xtc;

std::string make_frame(int n_atoms, double step_nm, float precision, std::mt19937& rng) {
    std::normal_distribution<double> step(0, step_nm);
    std::vector<float> x(3 * n_atoms);
    for (int i = 0; i < 3 * n_atoms; ++i) {
        const bool jump = rng() % 40 == 0;
        x[i] = static_cast<float>((i < 3 ? 0 : x[i - 3]) + (jump ? 20 : 1) * step(rng));
    }
    const float vectors[9] = {8, 0, 0, 0, 8, 0, 0, 0, 8};
    std::string out;
    encode_frame(x.data(), n_atoms, vectors, 1.5f, 7, precision, out);
    return out;
}

bool decode(const std::string& bytes) {
    return xtc_test::decode_everything(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                       bytes.size());
}

void set_int(std::string& bytes, std::size_t offset, std::uint32_t value) {
    for (int i = 0; i < 4; ++i) bytes[offset + i] = static_cast<char>(value >> (24 - 8 * i));
}

std::string damage(std::string bytes, std::mt19937& rng) {
    static const std::uint32_t extremes[] = {0,          1,          9,          72,         73,
                                             74,         0x7fffffff, 0x80000000, 0xffffffff, 0x00ffffff,
                                             0x01000000, 0x3f800000};
    const int n_changes = 1 + static_cast<int>(rng() % 4);
    for (int i = 0; i < n_changes; ++i) {
        switch (rng() % 4) {
            case 0:  // a number of the header
                if (bytes.size() >= 92) set_int(bytes, 4 * (rng() % 23), extremes[rng() % 12]);
                break;
            case 1:  // edges of the coordinates, which choose the way of packing
                if (bytes.size() >= 92) set_int(bytes, 60 + 4 * (rng() % 6), rng());
                break;
            case 2:
                bytes[rng() % bytes.size()] = static_cast<char>(rng());
                break;
            default:  // fewer bytes, and a header that knows of it
                if (bytes.size() > 120) {
                    bytes.resize(92 + (rng() % (bytes.size() - 92)) / 4 * 4);
                    set_int(bytes, 88, static_cast<std::uint32_t>(bytes.size() - 92));
                }
        }
    }
    return bytes;
}

}  // namespace

int main(int argc, char** argv) {
    const int n_rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
    std::mt19937 rng(12345);
    int n_decoded = 0, n_tried = 0;
    for (int round = 0; round < n_rounds; ++round) {
        const int n_atoms = 1 + static_cast<int>(rng() % (round % 50 == 0 ? 1200 : 60));
        const double step_nm = std::pow(10.0, -2.0 + static_cast<int>(rng() % 4));
        const float precision = std::pow(10.0f, static_cast<float>(1 + rng() % 5));
        const std::string frame = make_frame(n_atoms, step_nm, precision, rng);
        if (!decode(frame)) {
            std::printf("an undamaged frame of %d atoms does not decode\n", n_atoms);
            return 1;
        }
        for (int i = 0; i < 10; ++i, ++n_tried) n_decoded += decode(damage(frame, rng));
    }
    std::printf("%d of %d damaged frames decoded\n", n_decoded, n_tried);
    return 0;
}

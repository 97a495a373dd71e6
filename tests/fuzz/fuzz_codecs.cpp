// libFuzzer target for the library of codecs (mdio_codecs.h): `make fuzz`. Each runs with the newer
// instructions and without them, on buffers that are exactly as large as promised and begin at any
// byte; both give the same bits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cpu.h"
#include "integers.h"
#include "mdio_codecs.h"

using namespace mdio;

namespace {

struct Input {
    const std::uint8_t* data;
    std::size_t nbytes;

    std::uint8_t byte() {
        if (nbytes == 0) return 0;
        --nbytes;
        return *data++;
    }
};

void require(bool holds) {
    if (!holds) __builtin_trap();
}

mdio_memory* memory() {
    static mdio_memory* const of = mdio_memory_new();
    return of;
}

constexpr std::int64_t GROUP = 32, EIGHT = 8, MAX_WIDTH = 32, BEHIND = 16;
std::int64_t groups_of(std::int64_t n) { return (n + GROUP - 1) / GROUP; }
std::int64_t eights_of(std::int64_t n) { return (n + EIGHT - 1) / EIGHT; }

struct RigidBytes {
    std::vector<std::uint8_t> description, data;
};

// Whether it was decoded; else it says what is damaged.
bool is_decoded(mdio_status status) {
    require(status == MDIO_OK || (status == MDIO_DAMAGED && *mdio_message(memory())));
    return status == MDIO_OK;
}

// Floats on the heap, and what a kernel made of them on both paths.
template <class Kernel>
std::vector<float> both_ways(std::size_t n, const Kernel& kernel) {
    std::vector<float> plain(n), fast(n);
    plain_only = true;
    kernel(reinterpret_cast<char*>(plain.data()));
    plain_only = false;
    kernel(reinterpret_cast<char*>(fast.data()));
    require(n == 0 || std::memcmp(plain.data(), fast.data(), 4 * n) == 0);
    return plain;
}

std::vector<std::int64_t> some_atoms(Input& input, std::int64_t n_atoms) {
    std::vector<std::int64_t> atoms(1 + input.byte() % 9);
    for (auto& atom : atoms) atom = input.byte() % n_atoms;
    return atoms;
}

template <class Undo>
void undo_all_and_some(Input input, std::int64_t n_frames, std::int64_t n_atoms,
                       const Undo& undo) {
    const auto atoms = some_atoms(input, n_atoms);
    const auto n = static_cast<std::int64_t>(atoms.size());
    const std::int64_t first = input.byte() % n_frames;
    both_ways(static_cast<std::size_t>(3 * n_frames * n_atoms), [&](char* to) {
        undo(Output{to, n_atoms, 12 * n_atoms}, nullptr, 0);
    });
    both_ways(static_cast<std::size_t>(3 * (n_frames - first) * n), [&](char* to) {
        undo(Output{to, n, 12 * n}, atoms.data(), first);
    });
}

// A chunk from the folded integers on: whatever they are, there is a result.
void chunk(Input input, bool is_wide) {
    const std::int64_t n_atoms = 1 + input.byte() % 40;
    const std::uint8_t scale = input.byte();
    const std::size_t itemsize = is_wide ? 4 : 2;
    const auto n_frames =
        static_cast<std::int64_t>(input.nbytes / (itemsize * static_cast<std::size_t>(3 * n_atoms)));
    if (n_frames == 0) return;
    const std::int64_t n = 3 * n_atoms * n_frames;
    const std::vector<char> folded(input.data, input.data + itemsize * static_cast<std::size_t>(n));
    std::vector<std::int32_t> deltas(static_cast<std::size_t>(n)), fast(deltas.size());
    plain_only = true;
    unfold(folded.data(), is_wide, n, deltas.data());
    plain_only = false;
    unfold(folded.data(), is_wide, n, fast.data());
    require(deltas == fast);
    const char* raw = reinterpret_cast<const char*>(deltas.data());
    const double step = std::ldexp(1.0, scale - 128);
    using Atoms = const std::int64_t*;
    undo_all_and_some(input, n_frames, n_atoms, [&](Output out, Atoms atoms, std::int64_t first) {
        dequantise(raw, n_atoms, {step, 0}, out, atoms, first, n_frames);
    });
    undo_all_and_some(input, n_frames, n_atoms, [&](Output out, Atoms atoms, std::int64_t first) {
        dequantise(raw, n_atoms, {step, 1}, out, atoms, first, n_frames);
    });
    std::vector<std::uint8_t> kept(static_cast<std::size_t>(n_atoms));
    for (auto& one : kept) one = input.byte();
    const auto from = [&](std::int64_t first) {
        const std::int32_t* begin = deltas.data() + 3 * n_atoms * first;
        return Neighbours{begin, kept.data(), n_frames - first, n_atoms};
    };
    undo_all_and_some(input, n_frames, n_atoms, [&](Output out, Atoms atoms, std::int64_t first) {
        sum_neighbours(from(first), {step, 0}, out, atoms);
    });
    undo_all_and_some(input, n_frames, n_atoms, [&](Output out, Atoms atoms, std::int64_t first) {
        sum_neighbours(from(first), {step, 1}, out, atoms);
    });
}

// A bit-packed chunk, from any bytes on: the widths are made such that the size is right, or
// left as they are.
void packed_chunk(Input input, bool is_repaired) {
    const std::int64_t n_atoms = 1 + input.byte() % 60, n = 3 * n_atoms;
    const std::int64_t n_frames = 1 + input.byte() % 9;
    const double step = std::ldexp(1.0, input.byte() - 128);
    std::vector<std::uint8_t> kept(static_cast<std::size_t>(n_atoms));
    for (auto& one : kept) one = input.byte();
    std::vector<std::uint8_t> data(input.data, input.data + input.nbytes);
    if (is_repaired) {
        std::size_t nbytes = static_cast<std::size_t>(n_frames * groups_of(n));
        data.resize(std::max(data.size(), nbytes));
        for (std::int64_t row = 0; row < n_frames; ++row)
            for (std::int64_t g = 0; g < groups_of(n); ++g) {
                auto& width = data[static_cast<std::size_t>(row * groups_of(n) + g)];
                width %= MAX_WIDTH + 1;
                nbytes += width * static_cast<std::size_t>(std::min<std::int64_t>(
                                      GROUP / EIGHT, eights_of(n) - GROUP / EIGHT * g));
            }
        data.resize(nbytes + BEHIND, 0x5A);
    }
    data.shrink_to_fit();
    for (const std::uint8_t* given : {static_cast<const std::uint8_t*>(nullptr), static_cast<const std::uint8_t*>(kept.data())})
        for (const int is_xtc : {0, 1}) {
            const mdio_packed from{data.data(), static_cast<std::int64_t>(data.size()), given, n_frames, n_atoms};
            undo_all_and_some(input, n_frames, n_atoms, [&](Output out, const std::int64_t* atoms, std::int64_t first) {
                const mdio_selection which{atoms, first, n_frames};
                require(is_decoded(mdio_unpack(memory(), &from, {step, is_xtc}, &which, &out)) || !is_repaired);
            });
        }
}

// Any integers, packed alike on both paths, in no more room than there may be; and back.
void packed_integers(Input input) {
    const std::int64_t n_atoms = 1 + input.byte() % 60, n = 3 * n_atoms;
    const std::uint8_t shift = input.byte() % 32;
    const auto n_frames = static_cast<std::int64_t>(input.nbytes) / (4 * n);
    if (n_frames == 0) return;
    std::vector<std::int32_t> deltas(static_cast<std::size_t>(n * n_frames));
    std::memcpy(deltas.data(), input.data, 4 * deltas.size());
    for (auto& one : deltas) one >>= shift;
    const auto most = static_cast<std::size_t>(mdio_pack_limit(n_frames, n));
    std::vector<std::uint8_t> plain(most), fast(most);
    plain_only = true;
    const std::int64_t nbytes = mdio_pack(deltas.data(), n_frames, n, plain.data());
    plain_only = false;
    require(mdio_pack(deltas.data(), n_frames, n, fast.data()) == nbytes);
    plain.resize(static_cast<std::size_t>(nbytes));
    fast.resize(plain.size());
    require(plain == fast);
    const mdio_packed whole{plain.data(), nbytes, nullptr, n_frames, n_atoms};
    const mdio_selection all{nullptr, 0, n_frames};
    const auto back = both_ways(deltas.size(), [&](char* to) {
        const Output out{to, n_atoms, 12 * n_atoms};
        require(mdio_unpack(memory(), &whole, {1.0, 0}, &all, &out) == MDIO_OK);
    });
    std::vector<std::uint32_t> sums(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n * n_frames; ++i) {
        auto& sum = sums[static_cast<std::size_t>(i % n)];
        sum += std::uint32_t(deltas[static_cast<std::size_t>(i)]);
        if (i >= 3 && i < n) sum += sums[static_cast<std::size_t>(i - 3)];
        require(back[static_cast<std::size_t>(i)] == float(std::int32_t(sum)));
    }
}

// What either path makes of a rigid chunk: the same numbers, or both refuse it.
bool rigid_floats(const RigidBytes& made, std::int64_t n_frames, std::int64_t n_atoms,
                  const std::vector<std::int64_t>* atoms, std::int64_t first,
                  std::vector<float>& plain) {
    const auto n_out = atoms ? static_cast<std::int64_t>(atoms->size()) : n_atoms;
    const mdio_rigid chunk{made.description.data(), static_cast<std::int64_t>(made.description.size()), made.data.data(),
                           static_cast<std::int64_t>(made.data.size()), n_frames, n_atoms};
    const mdio_selection which{atoms ? atoms->data() : nullptr, first, n_frames};
    plain.assign(static_cast<std::size_t>(3 * (n_frames - first) * n_out), 0.0f);
    std::vector<float> fast(plain.size());
    const auto undo = [&](std::vector<float>& to) {
        const Output out{reinterpret_cast<char*>(to.data()), n_out, 12 * n_out};
        return is_decoded(mdio_rigid_decode(memory(), &chunk, {1.0, 0}, &which, &out));
    };
    plain_only = true;
    const bool done = undo(plain);
    plain_only = false;
    for (const int way : {2, 1, 0}) {
        avx2_only = way == 2, loads_only = way == 1;
        require(undo(fast) == done);
        require(!done || std::memcmp(plain.data(), fast.data(), 4 * plain.size()) == 0);
    }
    return done;
}

// Any integers, encoded alike on both paths, and back; then with some bytes changed.
void rigid_integers(Input input) {
    const std::int64_t n_atoms = 1 + 2 * input.byte(), n = 3 * n_atoms;
    const std::uint8_t how = input.byte(), shift = how % 32;
    const int key_every = how >> 5 & 3, least = how >> 7 ? 64 : 0;
    std::uint8_t changes[6];
    for (auto& one : changes) one = input.byte();
    const auto atoms = some_atoms(input, n_atoms);
    const auto n_frames = static_cast<std::int64_t>(input.nbytes) / (4 * n);
    if (n_frames < 2) return;
    std::vector<std::int32_t> deltas(static_cast<std::size_t>(n * n_frames));
    std::memcpy(deltas.data(), input.data, 4 * deltas.size());
    std::vector<std::uint32_t> sums(static_cast<std::size_t>(n));
    std::vector<float> x(deltas.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
        auto& sum = sums[i % sums.size()];
        sum += std::uint32_t(deltas[i] >> shift);
        x[i] = float(std::int32_t(sum) / 4);  // the integers that there may be are smaller than 2^30
    }
    const Frames positions{reinterpret_cast<const char*>(x.data()), n_frames, n_atoms, 4 * n};
    const auto encoded = [&] {
        mdio_rigid all;
        require(mdio_rigid_encode(memory(), &positions, {1.0, 0}, key_every, least, &all) == MDIO_OK);
        return RigidBytes{{all.description, all.description + all.description_nbytes}, {all.data, all.data + all.nbytes}};
    };
    plain_only = true;
    RigidBytes made = encoded();
    plain_only = false;
    const RigidBytes fast = encoded();
    require(made.description == fast.description && made.data == fast.data);
    std::vector<float> floats;
    require(rigid_floats(made, n_frames, n_atoms, nullptr, 0, floats));
    require(floats == x);
    require(rigid_floats(made, n_frames, n_atoms, &atoms, n_frames / 2, floats));
    for (int i = 0; i < 6; i += 3) {
        const std::size_t at = changes[i] * 256u + changes[i + 1];
        if (i == 0 && !made.description.empty())
            made.description[at % made.description.size()] ^= changes[i + 2];
        if (i == 3) made.data[at % made.data.size()] ^= changes[i + 2];
    }
    rigid_floats(made, n_frames, n_atoms, nullptr, 0, floats);
}

// A rigid chunk from any bytes.
void rigid_chunk(Input input) {
    const std::int64_t n_atoms = 1 + input.byte() % 60, n_frames = 1 + input.byte() % 9;
    const std::size_t n_described = std::min<std::size_t>(input.byte() * 16u + input.byte() % 16u, input.nbytes);
    const RigidBytes made{{input.data, input.data + n_described}, {input.data + n_described, input.data + input.nbytes}};
    std::vector<float> floats;
    rigid_floats(made, n_frames, n_atoms, nullptr, 0, floats);
}

// Positions to a chunk and back: half a step, along the frames and along the atoms alike.
void round_trip(Input input, bool is_xtc) {
    const std::int64_t n_atoms = 1 + input.byte() % 40;
    const double step = std::ldexp(1.0, input.byte() % 24 - 12);
    const auto n_frames =
        static_cast<std::int64_t>(input.nbytes / static_cast<std::size_t>(12 * n_atoms));
    if (n_frames == 0) return;
    const auto n = static_cast<std::size_t>(3 * n_atoms * n_frames);
    std::vector<float> x(n);
    std::memcpy(x.data(), input.data, 4 * n);
    const Frames positions{reinterpret_cast<const char*>(x.data()), n_frames, n_atoms, 12 * n_atoms};
    std::vector<std::int32_t> deltas(n), fast(n);
    const auto quantise = [&](std::vector<std::int32_t>& to) {
        return mdio_quantise(&positions, {step, is_xtc}, to.data()) == MDIO_OK;
    };
    plain_only = true;
    const bool done = quantise(deltas);
    plain_only = false;
    require(quantise(fast) == done);
    if (!done) return;
    require(deltas == fast);
    const auto along_frames = both_ways(n, [&](char* to) {
        const char* raw = reinterpret_cast<const char*>(deltas.data());
        const Output out{to, n_atoms, 12 * n_atoms};
        dequantise(raw, n_atoms, {step, is_xtc}, out, nullptr, 0, n_frames);
    });
    for (std::size_t i = 0; i < n; ++i)
        require(is_xtc ? along_frames[i] == x[i]
                       : std::fabs(double(along_frames[i]) - x[i]) <=
                             step / 2 + 1e-7 * std::fabs(double(x[i])));
    std::vector<std::uint8_t> kept(static_cast<std::size_t>(n_atoms));
    int is_better = 0;
    require(mdio_choose_neighbours(memory(), deltas.data(), n_frames, n_atoms, kept.data(), &is_better) == MDIO_OK);
    require(mdio_difference_neighbours(memory(), deltas.data(), n_frames, n_atoms, kept.data()) == MDIO_OK);
    const Neighbours from{deltas.data(), kept.data(), n_frames, n_atoms};
    const auto along_atoms = both_ways(n, [&](char* to) {
        const Output out{to, n_atoms, 12 * n_atoms};
        sum_neighbours(from, {step, is_xtc}, out, nullptr);
    });
    require(std::memcmp(along_atoms.data(), along_frames.data(), 4 * n) == 0);
}

// Bytes in any order are shuffled, and back.
void bytes(Input input) {
    const std::size_t itemsize = 1 + input.byte() % 17;
    const std::vector<std::uint8_t> data(input.data, input.data + input.nbytes);
    std::vector<std::uint8_t> mixed(data.size()), back(data.size());
    mdio_shuffle(data.data(), data.size(), itemsize, mixed.data());
    mdio_unshuffle(mixed.data(), data.size(), itemsize, back.data());
    require(back == data);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t nbytes) {
    if (nbytes < 2) return 0;
    const Input input{data + 1, nbytes - 1};
    switch (data[0] % 10) {
        case 0: chunk(input, false); break;
        case 1: chunk(input, true); break;
        case 2: round_trip(input, false); break;
        case 3: round_trip(input, true); break;
        case 5: packed_chunk(input, false); break;
        case 6: packed_chunk(input, true); break;
        case 7: packed_integers(input); break;
        case 8: rigid_integers(input); break;
        case 9: rigid_chunk(input); break;
        default: bytes(input);
    }
    return 0;
}

// What stays the same in a chunk, from a few frames of it: which atom before it each atom is best
// told from, and how. Nothing here has to be exact: any answer can be encoded.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "rigid.h"
#include "rigid_learn.h"

namespace mdio::rigid {
namespace {

constexpr int64_t BACK = 16;        // atoms that are tried as parents
constexpr int64_t SAMPLES = 6;      // pairs of frames
constexpr float RIGID = 0.4f;       // variance of a length whose ends have been rounded: 1/6
constexpr float CHANCE = 2.0f;       // bits that one of many parents may gain in few frames

// Bits of three numbers, from the mean logarithm of the sum of their sizes: unlike their mean, it
// is hardly moved by the few frames in which atoms leave the box on one side and return on another.
MDIO_INLINE float bits_of_three(float mean_log) { return 3.0f * mean_log + 2.6f; }

struct Sums {
    std::vector<float> moved, apart, length, square;
    explicit Sums(int64_t n) : moved(size_t(n)), apart(size_t(n)), length(size_t(n)), square(size_t(n)) {}
};

MDIO_INLINE void add_pair(const Samples& s, int64_t k, int64_t back, int64_t n_atoms, Sums& sums) {
    const int64_t begin = k * n_atoms;
    const int32_t *x = s.at[0].data() + begin, *y = s.at[1].data() + begin,
                  *z = s.at[2].data() + begin, *dx = s.moved[0].data() + begin,
                  *dy = s.moved[1].data() + begin, *dz = s.moved[2].data() + begin;
    float *moved = sums.moved.data(), *apart = sums.apart.data(), *length = sums.length.data(),
          *square = sums.square.data();
    for (int64_t i = back; i < n_atoms; ++i) {
        const auto less = [&](const int32_t* of) { return int32_t(uint32_t(of[i]) - uint32_t(of[i - back])); };
        const float ux = float(less(x)), uy = float(less(y)), uz = float(less(z));
        const float vx = float(less(dx)), vy = float(less(dy)), vz = float(less(dz));
        moved[i] += log2_of(std::fabs(vx) + std::fabs(vy) + std::fabs(vz) + 0.7f);
        apart[i] += log2_of(std::fabs(ux) + std::fabs(uy) + std::fabs(uz) + 0.7f);
        const float now = ux * ux + uy * uy + uz * uz;
        const float px = ux - vx, py = uy - vy, pz = uz - vz;
        const float before = px * px + py * py + pz * pz;
        length[i] += std::sqrt(now) + std::sqrt(before);
        square[i] += now + before;
    }
}

MDIO_INLINE void compare(const Sums& sums, int64_t n_samples, int32_t back, int64_t n_atoms, Best& best) {
    const float share = 1.0f / float(n_samples);
    for (int64_t at = back; at < n_atoms; ++at) {
        const auto i = size_t(at);
        const float moved = sums.moved[i] * share, apart = sums.apart[i] * share;
        const float length = sums.length[i] * share * 0.5f;
        const float variance = sums.square[i] * share * 0.5f - length * length;
        const float spread = std::sqrt(variance > 0.15f ? variance : 0.15f);
        const float in_time = bits_of_three(moved);
        // A bond that turns far cannot be told by its length and two numbers.
        const float far = moved - log2_of(length + 1.0f) + 0.5f;
        const float swing = length > LONGEST ? 1000.0f
                                             : in_time * (2.0f / 3.0f) + log2_of(spread * 1.35f) + 2.0f +
                                                   3.0f * (far > 0.0f ? far : 0.0f);
        const float here = bits_of_three(apart);
        float cost = best.cost[i], size = best.size[i];
        int32_t kind = best.kind[i];
        const float before = cost - 0.1f;
        const bool a = in_time < before;
        cost = a ? in_time : cost, kind = a ? TIME : kind, size = a ? moved : size;
        const bool b = here < cost && here < before;
        cost = b ? here : cost, kind = b ? FREE : kind, size = b ? apart : size;
        const bool c = swing < cost && swing < before;
        cost = c ? swing : cost, kind = c ? SWING : kind, size = c ? moved : size;
        const bool any = a | b | c;
        best.back[i] = any ? back : best.back[i];
        best.spread[i] = any ? spread : best.spread[i];
        best.length[i] = any ? length : best.length[i];
        best.cost[i] = cost, best.size[i] = size, best.kind[i] = kind;
        const bool rigid = variance < RIGID && length < LONGEST;
        best.rigid[i] |= uint32_t(rigid) << back;
        const bool shorter = rigid && length < best.rigid_length[i];
        best.rigid_length[i] = shorter ? length : best.rigid_length[i];
        best.rigid_back[i] = shorter ? back : best.rigid_back[i];
    }
}

MDIO_INLINE void look(const Samples& s, int64_t n_atoms, Best& best) {
    Sums sums(n_atoms);
    for (int64_t back = 1; back <= std::min(BACK, n_atoms - 1); ++back) {
        for (auto* of : {&sums.moved, &sums.apart, &sums.length, &sums.square})
            std::fill(of->begin(), of->end(), 0.0f);
        for (int64_t k = 0; k < s.n; ++k) add_pair(s, k, back, n_atoms, sums);
        compare(sums, s.n, int32_t(back), n_atoms, best);
    }
}

MDIO_TARGET("avx2") void look_avx2(const Samples& s, int64_t n_atoms, Best& best) { look(s, n_atoms, best); }

}  // namespace

Samples samples_of(const uint32_t* x, int64_t n_frames, int64_t n_atoms) {
    Samples s{std::min(n_frames - 1, SAMPLES), {}, {}};
    for (int axis = 0; axis < 3; ++axis) {
        s.at[axis].resize(size_t(s.n * n_atoms));
        s.moved[axis].resize(size_t(s.n * n_atoms));
    }
    for (int64_t k = 0; k < s.n; ++k) {
        const uint32_t* row = x + 3 * n_atoms * (1 + k * (n_frames - 1) / s.n);
        for (int64_t i = 0; i < n_atoms; ++i)
            for (int axis = 0; axis < 3; ++axis) {
                const uint32_t now = row[3 * i + axis];
                s.at[axis][size_t(k * n_atoms + i)] = int32_t(now);
                s.moved[axis][size_t(k * n_atoms + i)] = int32_t(now - row[3 * (i - n_atoms) + axis]);
            }
    }
    return s;
}

Best best_of(const Samples& s, int64_t n_atoms) {
    const auto n = size_t(n_atoms);
    Best best{std::vector<float>(n), std::vector<float>(n), std::vector<float>(n, 1.0f),
              std::vector<float>(n), std::vector<int32_t>(n, 0), std::vector<int32_t>(n, TIME),
              std::vector<float>(n, LONGEST), std::vector<int32_t>(n, 0), std::vector<uint32_t>(n, 0)};
    for (size_t k = 0; k < size_t(s.n); ++k)
        for (size_t i = 0; i < n; ++i) {
            float sum = 0.7f;
            for (const auto& axis : s.moved) sum += std::fabs(float(axis[k * n + i]));
            best.size[i] += log2_of(sum);
        }
    for (size_t i = 0; i < n; ++i) {
        best.size[i] /= float(s.n);
        best.cost[i] = bits_of_three(best.size[i]) - CHANCE;
    }
    (has_avx2() ? look_avx2 : look)(s, n_atoms, best);
    for (size_t i = 0; i < n; ++i) best.cost[i] += best.back[i] ? 0.0f : CHANCE;
    return best;
}

}  // namespace mdio::rigid

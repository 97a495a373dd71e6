// Molecules that a box cuts: neighbours that lie far apart, and beside each other over its sides.
#include <algorithm>
#include <cmath>

#include "kernels.h"

namespace mdio {
namespace {

// The largest difference, along any axis, between an atom and the next one. What is no number does
// not count.
float longest_step(const float* x, int64_t n_atoms) {
    constexpr int64_t lanes = 24;  // independent of each other, so that compilers use vectors
    const int64_t n = 3 * (n_atoms - 1);
    float most[lanes] = {};
    int64_t k = 0;
    for (; k + lanes <= n; k += lanes)
        for (int64_t lane = 0; lane < lanes; ++lane) {
            const float step = std::fabs(x[k + lane + 3] - x[k + lane]);
            most[lane] = step > most[lane] ? step : most[lane];
        }
    for (; k < n; ++k) {
        const float step = std::fabs(x[k + 3] - x[k]);
        most[0] = step > most[0] ? step : most[0];
    }
    return *std::max_element(most, most + lanes);
}

// `least`: neighbours that are nearer along each axis are not beside each other over a side.
bool is_cut(const float* x, const double* cell, const Indices& pairs, double near, double least) {
    for (int64_t k = 0; k < pairs.n; ++k) {
        const float* one = x + 3 * pairs.data[k];
        double step[3] = {double(one[3]) - one[0], double(one[4]) - one[1],
                          double(one[5]) - one[2]};
        if (!(std::fabs(step[0]) >= least || std::fabs(step[1]) >= least ||
              std::fabs(step[2]) >= least))
            continue;
        if (!(step[0] * step[0] + step[1] * step[1] + step[2] * step[2] > near * near)) continue;
        for (int axis = 2; axis >= 0; --axis) {
            const double times = std::nearbyint(step[axis] / cell[4 * axis]);
            for (int j = 0; j <= axis; ++j) step[j] -= times * cell[3 * axis + j];
        }
        if (step[0] * step[0] + step[1] * step[1] + step[2] * step[2] <= near * near) return true;
    }
    return false;
}

}  // namespace

void cut_frames(const Frames& positions, const double* cells, const Indices& pairs, double near,
                bool* out) {
    for (int64_t f = 0; f < positions.n_frames; ++f) {
        const auto* x = reinterpret_cast<const float*>(positions.data + f * positions.stride);
        const double* cell = cells + 9 * f;
        const double height = std::min({cell[0], cell[4], cell[8]});
        // Over a side of the box a neighbour lies a sum of cell vectors away, but for the distance.
        // Along the last axis that one of these leads along, that is a multiple of the height.
        const double least = 0.999 * (height - near);  // what is compared is rounded
        out[f] = height > 0 && longest_step(x, positions.n_atoms) >= least &&
                 is_cut(x, cell, pairs, near, least);
    }
}

}  // namespace mdio

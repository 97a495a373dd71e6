// Distances of pairs of atoms: to the nearest image, and the longest of each frame.
#include <cmath>
#include <cstring>

#include "cell.h"
#include "kernels.h"

namespace mdio {
namespace {

struct Apart {
    double x[3];

    Apart(const char* frame, int64_t one, int64_t other) {
        float a[3], b[3];
        std::memcpy(a, frame + 12 * one, 12);
        std::memcpy(b, frame + 12 * other, 12);
        for (int axis = 0; axis < 3; ++axis) x[axis] = double(b[axis]) - a[axis];
    }
    double square() const { return x[0] * x[0] + x[1] * x[1] + x[2] * x[2]; }
};

}  // namespace

void distances(const Frames& positions, const double* vectors, const Indices& first,
               const int64_t* second, double* out) {
    for (int64_t f = 0; f < positions.n_frames; ++f, vectors += 9, out += first.n) {
        const char* data = positions.data + f * positions.stride;
        for (int64_t k = 0; k < first.n; ++k)
            out[k] = std::sqrt(Apart(data, first.data[k], second[k]).square());
        if (!(vectors[8] > 0)) continue;
        Cell cell(vectors);
        const double lengths[3] = {cell.xx, cell.yy, cell.zz};
        for (int64_t k = 0; k < first.n; ++k) {
            if (cell.is_nearest(out[k] * out[k])) continue;
            Apart apart(data, first.data[k], second[k]);
            if (cell.is_skewed()) {
                double n[3];
                out[k] = std::sqrt(cell.nearest(apart.x, n));
                continue;
            }
            for (int axis = 0; axis < 3; ++axis)
                apart.x[axis] -= rounded(apart.x[axis] / lengths[axis]) * lengths[axis];
            out[k] = std::sqrt(apart.square());
        }
    }
}

void longest_distances(const Frames& positions, const Indices& pairs, double* out) {
    for (int64_t f = 0; f < positions.n_frames; ++f) {
        const auto* x = reinterpret_cast<const float*>(positions.data + f * positions.stride);
        double longest = 0;
        for (int64_t k = 0; k < pairs.n; ++k) {
            const float* one = x + 3 * pairs.data[k];
            const double a = double(one[3]) - one[0], b = double(one[4]) - one[1],
                         c = double(one[5]) - one[2], square = a * a + b * b + c * c;
            longest = square > longest ? square : longest;
        }
        out[f] = std::sqrt(longest);
    }
}

}  // namespace mdio

// Frames laid on a reference: the sums that tell how, and all atoms turned.
#include <cstring>

#include "kernels.h"

namespace mdio {

void fit_sums(const Frames& positions, const Indices& picked, const double* reference,
              double* out) {
    for (int64_t frame = 0; frame < positions.n_frames; ++frame, out += 12) {
        const char* data = positions.data + frame * positions.stride;
        double sums[12] = {};
        for (int64_t i = 0; i < picked.n; ++i) {
            float x[3];
            std::memcpy(x, data + 12 * picked.data[i], 12);
            for (int a = 0; a < 3; ++a) {
                sums[a] += double(x[a]);
                for (int b = 0; b < 3; ++b)
                    sums[3 + 3 * a + b] += double(x[a]) * reference[3 * i + b];
            }
        }
        std::memcpy(out, sums, sizeof sums);
    }
}

void turn(const Output& vectors, int64_t n_frames, const double* rotations, const double* from,
          const double* to) {
    for (int64_t frame = 0; frame < n_frames; ++frame, rotations += 9, from += 3) {
        char* data = vectors.data + frame * vectors.stride;
        for (int64_t i = 0; i < vectors.n_atoms; ++i, data += 12) {
            float x[3];
            std::memcpy(x, data, 12);
            const double a = double(x[0]) - from[0], b = double(x[1]) - from[1],
                         c = double(x[2]) - from[2];
            for (int axis = 0; axis < 3; ++axis)
                x[axis] = float(a * rotations[axis] + b * rotations[3 + axis] +
                                c * rotations[6 + axis] + to[axis]);
            std::memcpy(data, x, 12);
        }
    }
}

}  // namespace mdio

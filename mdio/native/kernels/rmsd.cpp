// Root-mean-square deviation of many frames from one reference.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu.h"
#include "eigenvalue.h"
#include "kernels.h"

namespace mdio {
namespace {

constexpr int64_t LANES = 4;

// The reference, centred, one axis after the other, padded with zeros to whole lanes.
struct Reference {
    int64_t n_padded;
    std::vector<double> axes;     // (3, n_padded), each atom times its weight
    std::vector<double> weights;  // (n_padded,), empty if all are one
    double squares = 0;           // weighted sum of squared coordinates
    double total = 0;             // sum of weights

    Reference(const double* xyz, const double* given, int64_t n)
        : n_padded((n + LANES - 1) / LANES * LANES), axes(size_t(3 * n_padded)) {
        double centre[3] = {0, 0, 0};
        for (int64_t i = 0; i < n; ++i) {
            const double weight = given ? given[i] : 1;
            total += weight;
            for (int axis = 0; axis < 3; ++axis) centre[axis] += weight * xyz[3 * i + axis];
        }
        for (int64_t i = 0; i < n; ++i)
            for (int axis = 0; axis < 3; ++axis) {
                const double weight = given ? given[i] : 1;
                const double x = xyz[3 * i + axis] - centre[axis] / total;
                axes[size_t(axis * n_padded + i)] = weight * x;
                squares += weight * x * x;
            }
        if (given) {
            weights.assign(size_t(n_padded), 0);
            std::copy(given, given + n, weights.begin());
        }
    }
};

// One coordinate of a frame, which need not be aligned.
MDIO_INLINE double at(const char* frame, int64_t i) {
    float x;
    std::memcpy(&x, frame + 4 * i, 4);
    return double(x);
}

// Weighted sums over the atoms of one frame, its coordinates x taken from its first atom.
struct Sums {
    double inner[9];  // x_i reference_j, row by row
    double first[3];  // x_i
    double squares;   // x . x
};

template <bool WEIGHTED>
void add_plain(const Reference& reference, const char* frame, int64_t n, Sums& sums) {
    const double* axes = reference.axes.data();
    sums = {};
    for (int64_t i = 0; i < n; ++i) {
        const double weight = WEIGHTED ? reference.weights[size_t(i)] : 1;
        for (int a = 0; a < 3; ++a) {
            const double x = at(frame, 3 * i + a) - at(frame, a);
            sums.first[a] += weight * x;
            sums.squares += weight * x * x;
            for (int b = 0; b < 3; ++b)
                sums.inner[3 * a + b] += x * axes[b * reference.n_padded + i];
        }
    }
}

#if MDIO_X86

MDIO_TARGET("avx2,fma") inline double across(__m256d v) {
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

template <bool WEIGHTED>
MDIO_TARGET("avx2,fma")
void add_avx2(const Reference& reference, const char* frame, int64_t n, Sums& sums) {
    const double *rx = reference.axes.data(), *ry = rx + reference.n_padded;
    const double *rz = ry + reference.n_padded, *weights = reference.weights.data();
    const __m256d x0 = _mm256_set1_pd(at(frame, 0)), y0 = _mm256_set1_pd(at(frame, 1));
    const __m256d z0 = _mm256_set1_pd(at(frame, 2));
    __m256d inner[9], first[3], squares = _mm256_setzero_pd();
    for (auto& sum : inner) sum = _mm256_setzero_pd();
    for (auto& sum : first) sum = _mm256_setzero_pd();
    float tail[3 * LANES];
    for (int64_t i = 0; i < n; i += LANES) {
        const float* four = reinterpret_cast<const float*>(frame + 12 * i);
        if (i + LANES > n) {  // filled up with the first atom, which adds nothing
            for (int64_t j = 0; j < LANES; ++j)
                std::memcpy(tail + 3 * j, frame + (i + j < n ? 12 * (i + j) : 0), 12);
            four = tail;
        }
        const __m128 a = _mm_loadu_ps(four);      // x0 y0 z0 x1
        const __m128 b = _mm_loadu_ps(four + 4);  // y1 z1 x2 y2
        const __m128 c = _mm_loadu_ps(four + 8);  // z2 x3 y3 z3
        const __m128 x2y2x3y3 = _mm_shuffle_ps(b, c, _MM_SHUFFLE(2, 1, 3, 2));
        const __m128 y0z0y1z1 = _mm_shuffle_ps(a, b, _MM_SHUFFLE(1, 0, 2, 1));
        const __m256d x = _mm256_sub_pd(
            _mm256_cvtps_pd(_mm_shuffle_ps(a, x2y2x3y3, _MM_SHUFFLE(2, 0, 3, 0))), x0);
        const __m256d y = _mm256_sub_pd(
            _mm256_cvtps_pd(_mm_shuffle_ps(y0z0y1z1, x2y2x3y3, _MM_SHUFFLE(3, 1, 2, 0))), y0);
        const __m256d z = _mm256_sub_pd(
            _mm256_cvtps_pd(_mm_shuffle_ps(y0z0y1z1, c, _MM_SHUFFLE(3, 0, 3, 1))), z0);
        const __m256d xyz[3] = {x, y, z};
        const __m256d fixed[3] = {_mm256_loadu_pd(rx + i), _mm256_loadu_pd(ry + i),
                                  _mm256_loadu_pd(rz + i)};
        for (int p = 0; p < 3; ++p)
            for (int q = 0; q < 3; ++q)
                inner[3 * p + q] = _mm256_fmadd_pd(xyz[p], fixed[q], inner[3 * p + q]);
        const __m256d square = _mm256_fmadd_pd(x, x, _mm256_fmadd_pd(y, y, _mm256_mul_pd(z, z)));
        if (WEIGHTED) {
            const __m256d weight = _mm256_loadu_pd(weights + i);
            squares = _mm256_fmadd_pd(weight, square, squares);
            for (int p = 0; p < 3; ++p) first[p] = _mm256_fmadd_pd(weight, xyz[p], first[p]);
        } else {
            squares = _mm256_add_pd(square, squares);
            for (int p = 0; p < 3; ++p) first[p] = _mm256_add_pd(xyz[p], first[p]);
        }
    }
    for (int j = 0; j < 9; ++j) sums.inner[j] = across(inner[j]);
    for (int p = 0; p < 3; ++p) sums.first[p] = across(first[p]);
    sums.squares = across(squares);
}

#else

template <bool WEIGHTED>
void add_avx2(const Reference&, const char*, int64_t, Sums&) {}

#endif

double root(double mean_square) { return std::sqrt(mean_square < 0 ? 0 : mean_square); }

void rmsd_superposed(const Frames& positions, const double* xyz, const double* weights,
                     double* out) {
    const Reference reference(xyz, weights, positions.n_atoms);
    const auto add = has_avx2() ? (weights ? add_avx2<true> : add_avx2<false>)
                                : (weights ? add_plain<true> : add_plain<false>);
    for (int64_t f = 0; f < positions.n_frames; ++f) {
        Sums sums;
        add(reference, positions.data + f * positions.stride, positions.n_atoms, sums);
        // The reference is centred, so only the squares feel that the frame is not.
        double squares = sums.squares;
        for (double first : sums.first) squares -= first * first / reference.total;
        const double half = (squares + reference.squares) / 2;
        out[f] = root(2 * (half - largest_eigenvalue(sums.inner, half)) / reference.total);
    }
}

// Eight sums side by side, which compilers turn into vector instructions.
template <bool WEIGHTED>
MDIO_INLINE double squared_distance(const char* frame, const double* xyz, const double* weights,
                                    int64_t n) {
    double sums[8] = {}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int64_t j = 0; j < 8; ++j) {
            const double d = at(frame, i + j) - xyz[i + j];
            sums[j] += WEIGHTED ? weights[i + j] * (d * d) : d * d;
        }
    for (; i < n; ++i) {
        const double d = at(frame, i) - xyz[i];
        sum += WEIGHTED ? weights[i] * (d * d) : d * d;
    }
    for (double part : sums) sum += part;
    return sum;
}

MDIO_INLINE void rmsd_in_place(const Frames& positions, const double* xyz, const double* weights,
                               double total, double* out) {
    for (int64_t f = 0; f < positions.n_frames; ++f) {
        const char* frame = positions.data + f * positions.stride;
        const int64_t n = 3 * positions.n_atoms;
        const double sum = weights ? squared_distance<true>(frame, xyz, weights, n)
                                   : squared_distance<false>(frame, xyz, weights, n);
        out[f] = root(sum / total);
    }
}

MDIO_TARGET("avx2,fma")
void rmsd_in_place_avx2(const Frames& positions, const double* xyz, const double* weights,
                        double total, double* out) {
    rmsd_in_place(positions, xyz, weights, total, out);
}

}  // namespace

void rmsd(const Frames& positions, const double* reference, const double* weights, bool superpose,
          double* out) {
    if (superpose) return rmsd_superposed(positions, reference, weights, out);
    double total = double(positions.n_atoms);
    std::vector<double> thrice;  // a weight for each number
    if (weights) {
        total = 0;
        thrice.resize(size_t(3 * positions.n_atoms));
        for (int64_t i = 0; i < positions.n_atoms; ++i) {
            total += weights[i];
            std::fill_n(thrice.begin() + 3 * i, 3, weights[i]);
        }
        weights = thrice.data();
    }
    (has_avx2() ? rmsd_in_place_avx2 : rmsd_in_place)(positions, reference, weights, total, out);
}

}  // namespace mdio

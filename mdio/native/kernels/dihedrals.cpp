// Cosines and sines of dihedral angles, straight from the coordinates: no angle is ever made.
#include <cmath>
#include <cstring>

#include "cpu.h"
#include "kernels.h"

namespace mdio {
namespace {

constexpr int64_t LANES = 4;

// From one atom to another, rounded to float32 as MDAnalysis rounds it.
MDIO_INLINE void bond(const char* frame, int64_t from, int64_t to, double* vector) {
    float a[3], b[3];
    std::memcpy(a, frame + 12 * from, 12);
    std::memcpy(b, frame + 12 * to, 12);
    for (int i = 0; i < 3; ++i) vector[i] = double(b[i] - a[i]);
}

MDIO_INLINE double dot(const double* a, const double* b) {
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

MDIO_INLINE void cross(const double* a, const double* b, double* normal) {
    normal[0] = a[1] * b[2] - a[2] * b[1];
    normal[1] = a[2] * b[0] - a[0] * b[2];
    normal[2] = a[0] * b[1] - a[1] * b[0];
}

// A number that is not one never is the longest.
MDIO_INLINE void lengthen(double& longest, double squared) {
    if (squared > longest) longest = squared;
}

double angles_plain(const char* frame, const int64_t* quads, int64_t n, double* out) {
    double longest = 0;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t* quad = quads + 4 * i;
        double a[3], b[3], c[3], ab[3], bc[3];
        bond(frame, quad[0], quad[1], a);
        bond(frame, quad[1], quad[2], b);
        bond(frame, quad[2], quad[3], c);
        cross(a, b, ab);
        cross(b, c, bc);
        const double squared = dot(b, b);
        lengthen(longest, dot(a, a));
        lengthen(longest, squared);
        lengthen(longest, dot(c, c));
        const double x = dot(ab, bc), y = std::sqrt(squared) * dot(a, bc);
        const double scale = 1 / std::sqrt(x * x + y * y);
        out[2 * i] = x * scale;
        out[2 * i + 1] = y * scale;
    }
    return longest;
}

#if MDIO_X86
#define MDIO_AVX2 MDIO_TARGET("avx2,fma") inline

struct Vectors {  // four of them
    __m256d x, y, z;
};

// The fourth number may lie beyond the last frame: it is not loaded.
MDIO_AVX2 __m128 atom(const char* frame, int64_t index) {
    const __m128i three = _mm_setr_epi32(-1, -1, -1, 0);
    return _mm_maskload_ps(reinterpret_cast<const float*>(frame + 12 * index), three);
}

MDIO_AVX2 Vectors bonds(const __m128* from, const __m128* to) {
    __m128 v[LANES];
    for (int i = 0; i < LANES; ++i) v[i] = _mm_sub_ps(to[i], from[i]);
    _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
    return {_mm256_cvtps_pd(v[0]), _mm256_cvtps_pd(v[1]), _mm256_cvtps_pd(v[2])};
}

MDIO_AVX2 __m256d dot(const Vectors& a, const Vectors& b) {
    return _mm256_fmadd_pd(a.x, b.x, _mm256_fmadd_pd(a.y, b.y, _mm256_mul_pd(a.z, b.z)));
}

MDIO_AVX2 Vectors cross(const Vectors& a, const Vectors& b) {
    return {_mm256_fmsub_pd(a.y, b.z, _mm256_mul_pd(a.z, b.y)),
            _mm256_fmsub_pd(a.z, b.x, _mm256_mul_pd(a.x, b.z)),
            _mm256_fmsub_pd(a.x, b.y, _mm256_mul_pd(a.y, b.x))};
}

MDIO_AVX2 void four_angles(const char* frame, const int64_t* quads, double* out,
                           __m256d& longest) {
    __m128 corners[4][LANES];
    for (int lane = 0; lane < LANES; ++lane)
        for (int corner = 0; corner < 4; ++corner)
            corners[corner][lane] = atom(frame, quads[4 * lane + corner]);
    const Vectors a = bonds(corners[0], corners[1]), b = bonds(corners[1], corners[2]);
    const Vectors c = bonds(corners[2], corners[3]), bc = cross(b, c);
    const __m256d squared = dot(b, b);
    // Of two numbers the second is taken if one is none.
    longest = _mm256_max_pd(dot(a, a), longest);
    longest = _mm256_max_pd(squared, longest);
    longest = _mm256_max_pd(dot(c, c), longest);
    const __m256d x = dot(cross(a, b), bc);
    const __m256d y = _mm256_mul_pd(_mm256_sqrt_pd(squared), dot(a, bc));
    const __m256d norm = _mm256_sqrt_pd(_mm256_fmadd_pd(x, x, _mm256_mul_pd(y, y)));
    const __m256d scale = _mm256_div_pd(_mm256_set1_pd(1), norm);
    const __m256d cosines = _mm256_mul_pd(x, scale), sines = _mm256_mul_pd(y, scale);
    const __m256d even = _mm256_unpacklo_pd(cosines, sines);
    const __m256d odd = _mm256_unpackhi_pd(cosines, sines);
    _mm256_storeu_pd(out, _mm256_permute2f128_pd(even, odd, 0x20));
    _mm256_storeu_pd(out + 4, _mm256_permute2f128_pd(even, odd, 0x31));
}

MDIO_TARGET("avx2,fma")
double angles_avx2(const char* frame, const int64_t* quads, int64_t n, double* out) {
    __m256d longest = _mm256_setzero_pd();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) four_angles(frame, quads + 4 * i, out + 2 * i, longest);
    if (i < n) {  // by the same arithmetic, so that an angle is the same wherever it stands
        int64_t last[4 * LANES];
        double values[2 * LANES];
        for (int64_t lane = 0; lane < LANES; ++lane)
            std::memcpy(last + 4 * lane, quads + 4 * (i + lane < n ? i + lane : i), 32);
        four_angles(frame, last, values, longest);
        std::memcpy(out + 2 * i, values, size_t(n - i) * 16);
    }
    double found = 0, lanes[LANES];
    _mm256_storeu_pd(lanes, longest);
    for (double lane : lanes) lengthen(found, lane);
    return found;
}

#else

double angles_avx2(const char* frame, const int64_t* quads, int64_t n, double* out) {
    return angles_plain(frame, quads, n, out);
}

#endif

}  // namespace

void dihedrals(const Frames& positions, const int64_t* quads, int64_t n, double* out,
               double* longest) {
    const auto angles = has_avx2() ? angles_avx2 : angles_plain;
    for (int64_t f = 0; f < positions.n_frames; ++f)
        longest[f] = std::sqrt(
            angles(positions.data + f * positions.stride, quads, n, out + 2 * n * f));
}

}  // namespace mdio

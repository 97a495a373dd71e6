// The quartic of the QCP method (Theobald 2005, 10.1107/S0108767305015266), with a second, slower
// way for the shapes on which Newton's iteration loses digits.
#include "eigenvalue.h"

#include <algorithm>
#include <cmath>

namespace mdio {
namespace {

constexpr int MAX_STEPS = 30;
// Slope of the scaled quartic below which its largest root counts as double: lines, mirror images.
// Rounding errors grow by one over the slope; compact shapes have slopes well above this.
constexpr double MIN_SLOPE = 0.5;

// Jacobi's rotations on the key matrix itself (Horn 1987, 10.1364/JOSAA.4.000629): exact to
// rounding for any shape.
double by_rotations(const double s[9]) {
    double k[4][4] = {{s[0] + s[4] + s[8], s[5] - s[7], s[6] - s[2], s[1] - s[3]},
                      {s[5] - s[7], s[0] - s[4] - s[8], s[1] + s[3], s[6] + s[2]},
                      {s[6] - s[2], s[1] + s[3], s[4] - s[0] - s[8], s[5] + s[7]},
                      {s[1] - s[3], s[6] + s[2], s[5] + s[7], s[8] - s[0] - s[4]}};
    for (int sweep = 0; sweep < MAX_STEPS; ++sweep) {
        double rest = 0;
        for (int p = 0; p < 4; ++p)
            for (int q = p + 1; q < 4; ++q) rest = std::max(rest, std::fabs(k[p][q]));
        if (rest < 1e-17) break;
        for (int p = 0; p < 4; ++p)
            for (int q = p + 1; q < 4; ++q) {
                if (k[p][q] == 0) continue;
                const double half = (k[q][q] - k[p][p]) / (2 * k[p][q]);
                const double tangent =
                    std::copysign(1.0, half) / (std::fabs(half) + std::hypot(half, 1.0));
                const double cosine = 1 / std::hypot(tangent, 1.0), sine = tangent * cosine;
                for (int i = 0; i < 4; ++i) {
                    const double ip = k[i][p], iq = k[i][q];
                    k[i][p] = cosine * ip - sine * iq;
                    k[i][q] = sine * ip + cosine * iq;
                }
                for (int i = 0; i < 4; ++i) {
                    const double pi = k[p][i], qi = k[q][i];
                    k[p][i] = cosine * pi - sine * qi;
                    k[q][i] = sine * pi + cosine * qi;
                }
            }
    }
    return std::max(std::max(k[0][0], k[1][1]), std::max(k[2][2], k[3][3]));
}

}  // namespace

double largest_eigenvalue(const double inner[9], double bound) {
    double squares = 0;
    for (int i = 0; i < 9; ++i) squares += inner[i] * inner[i];
    if (squares == 0) return 0;
    if (!std::isfinite(squares) || !std::isfinite(bound)) return NAN;
    const double size = std::sqrt(squares);
    double s[9];
    for (int i = 0; i < 9; ++i) s[i] = inner[i] / size;

    // With singular values a, b, c of s (the sign of det s on one), the key matrix has eigenvalues
    // a+b+c, a-b-c, -a+b-c, -a-b+c. Their sum is 0, the other symmetric functions give
    //   (x^2 - 1)^2 = 8 det x + 4 minors,  minors = a^2 b^2 + b^2 c^2 + c^2 a^2,
    // since a^2 + b^2 + c^2 = 1 after scaling; minors is the sum of the squared cofactors.
    const double cofactors[9] = {
        s[4] * s[8] - s[5] * s[7], s[5] * s[6] - s[3] * s[8], s[3] * s[7] - s[4] * s[6],
        s[2] * s[7] - s[1] * s[8], s[0] * s[8] - s[2] * s[6], s[1] * s[6] - s[0] * s[7],
        s[1] * s[5] - s[2] * s[4], s[2] * s[3] - s[0] * s[5], s[0] * s[4] - s[1] * s[3]};
    const double det = s[0] * cofactors[0] + s[1] * cofactors[1] + s[2] * cofactors[2];
    double minors = 0;
    for (int i = 0; i < 9; ++i) minors += cofactors[i] * cofactors[i];

    // Both starts are upper bounds, and the quartic is convex above its largest root.
    double x = std::min(bound / size, std::sqrt(3.0));
    for (int step = 0; step < MAX_STEPS; ++step) {
        const double inside = x * x - 1;
        const double slope = 4 * x * inside - 8 * det;
        if (!(slope > MIN_SLOPE)) break;
        const double change = (inside * inside - 8 * det * x - 4 * minors) / slope;
        x -= change;
        if (std::fabs(change) < 1e-10) return x * size;  // the next would be beyond rounding
    }
    return by_rotations(s) * size;
}

}  // namespace mdio

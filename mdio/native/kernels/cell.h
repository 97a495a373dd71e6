// A periodic cell: fractions of its vectors, and the nearest images of atoms in cells of all shapes.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

namespace mdio {

// To the nearest whole number, without the call that rint() is on some processors.
inline double rounded(double x) {
    constexpr double SHIFT = 6755399441055744.0;  // 1.5 * 2^52: no room for fractions
    return (x + SHIFT) - SHIFT;
}

// A lower triangle: the vectors are rows, the first along x, the second in the xy plane.
class Cell {
public:
    explicit Cell(const double* v)
        : xx(v[0]), yx(v[3]), yy(v[4]), zx(v[6]), zy(v[7]), zz(v[8]),
          per_x_(1 / xx), per_y_(1 / yy), per_z_(1 / zz) {
        // No vector of the lattice is shorter than the least of the three.
        const double half = std::min(xx, std::min(yy, zz)) / 2;
        sure_ = half * half;
    }

    // In units of the vectors.
    void fractions(const double* x, double* f) const {
        f[2] = x[2] * per_z_;
        f[1] = (x[1] - f[2] * zy) * per_y_;
        f[0] = (x[0] - f[1] * yx - f[2] * zx) * per_x_;
    }
    void subtract(float* x, double a, double b, double c) const {
        x[0] = float(x[0] - (a * xx + b * yx + c * zx));
        x[1] = float(x[1] - (b * yy + c * zy));
        x[2] = float(x[2] - c * zz);
    }
    // Of a distance: whether no image is shorter, for certain.
    bool is_nearest(const double* apart) const {
        return is_nearest(apart[0] * apart[0] + apart[1] * apart[1] + apart[2] * apart[2]);
    }
    bool is_nearest(double square) const { return square < sure_; }

    // Of any distance: what to subtract for the shortest of its images, whose square is returned.
    double nearest(const double* apart, double* n) {
        n[2] = rounded(apart[2] * per_z_);
        n[1] = rounded((apart[1] - n[2] * zy) * per_y_);
        n[0] = rounded((apart[0] - n[1] * yx - n[2] * zx) * per_x_);
        double x[3] = {apart[0] - n[0] * xx - n[1] * yx - n[2] * zx,
                       apart[1] - n[1] * yy - n[2] * zy, apart[2] - n[2] * zz};
        double least = x[0] * x[0] + x[1] * x[1] + x[2] * x[2];
        if (!is_skewed() || !(least > sure_)) return least;
        look_around();
        while (true) {  // until no step, forth or back, makes it shorter
            double along[N_STEPS];
            for (int i = 0; i < N_STEPS; ++i)
                along[i] = x[0] * around_x_[i] + x[1] * around_y_[i] + x[2] * around_z_[i];
            int best = -1;
            double most = least * (ROUNDING / 2);  // half of what the square loses
            for (int i = 0; i < N_STEPS; ++i) {
                const double gain = std::fabs(along[i]) - around_half_[i];
                if (gain > most) most = gain, best = i;
            }
            if (best < 0) return least;
            const double sign = along[best] > 0 ? 1 : -1;
            for (int c = 0; c < 3; ++c) {
                x[c] -= sign * around_[best].x[c];
                n[c] += sign * around_[best].n[c];
            }
            least = x[0] * x[0] + x[1] * x[1] + x[2] * x[2];
        }
    }

    bool is_skewed() const { return yx != 0 || zx != 0 || zy != 0; }

    const double xx, yx, yy, zx, zy, zz;

private:
    static constexpr double ROUNDING = 1e-9;
    static constexpr int N_STEPS = 13;   // to all neighbours, forth or back
    static constexpr int MANY = 100;  // more rounds than numbers of any cell take

    struct Step {
        double n[3], x[3];
    };

    static double square(const Step& one) {
        return one.x[0] * one.x[0] + one.x[1] * one.x[1] + one.x[2] * one.x[2];
    }
    static double dot(const Step& one, const Step& other) {
        return one.x[0] * other.x[0] + one.x[1] * other.x[1] + one.x[2] * other.x[2];
    }
    static void add(Step& to, const Step& what, double times) {
        for (int c = 0; c < 3; ++c) to.n[c] += times * what.n[c], to.x[c] += times * what.x[c];
    }

    // Semaev's reduction (10.1007/3-540-44670-2_13): three vectors as short as they can be. Steps by
    // them and their sums lead from any image to the nearest, always by one that is shorter.
    void look_around() {
        if (is_known_) return;
        is_known_ = true;
        Step one{{1, 0, 0}, {xx, 0, 0}}, two{{0, 1, 0}, {yx, yy, 0}}, three{{0, 0, 1}, {zx, zy, zz}};
        for (int round = 0; round < MANY; ++round) {
            sort(one, two, three);
            for (int inner = 0; inner < MANY; ++inner) {
                add(two, one, -std::rint(dot(two, one) / square(one)));
                if (square(two) >= square(one) * (1 - ROUNDING)) break;
                std::swap(one, two);
            }
            const double aa = square(one), ab = dot(one, two), bb = square(two);
            const double a = dot(three, one), b = dot(three, two), area = aa * bb - ab * ab;
            const double by_one = std::rint((a * bb - b * ab) / area);
            const double by_two = std::rint((b * aa - a * ab) / area);
            Step shortest = three;
            for (int i = -1; i <= 1; ++i)
                for (int j = -1; j <= 1; ++j) {
                    Step tried = three;
                    add(tried, one, -by_one - i);
                    add(tried, two, -by_two - j);
                    if (square(tried) < square(shortest) * (1 - ROUNDING)) shortest = tried;
                }
            three = shortest;
            if (square(three) >= square(two) * (1 - ROUNDING)) break;
        }
        sure_ = square(one) / 4;
        int i = 0;
        for (int c = -1; c <= 1; ++c)
            for (int b = -1; b <= 1; ++b)
                for (int a = -1; a <= 1; ++a) {
                    if (9 * c + 3 * b + a <= 0) continue;  // none, or another one back
                    Step sum{{0, 0, 0}, {0, 0, 0}};
                    add(sum, one, a), add(sum, two, b), add(sum, three, c);
                    around_x_[i] = sum.x[0], around_y_[i] = sum.x[1], around_z_[i] = sum.x[2];
                    around_half_[i] = square(sum) / 2;
                    around_[i++] = sum;
                }
    }
    static void sort(Step& one, Step& two, Step& three) {
        if (square(two) < square(one)) std::swap(one, two);
        if (square(three) < square(two)) std::swap(two, three);
        if (square(two) < square(one)) std::swap(one, two);
    }

    const double per_x_, per_y_, per_z_;
    double sure_;
    bool is_known_ = false;
    Step around_[N_STEPS] = {};
    double around_x_[N_STEPS] = {}, around_y_[N_STEPS] = {}, around_z_[N_STEPS] = {};
    double around_half_[N_STEPS] = {};  // of their squares
};

}  // namespace mdio

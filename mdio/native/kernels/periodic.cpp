// Molecules made whole, put into the cell, gathered, centred, and followed over its boundaries, in
// place.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cell.h"
#include "cpu.h"
#include "kernels.h"

namespace mdio {
namespace {

constexpr double FAR = 1e9;  // cells, or angstrom: more than any atom has gone between two frames
// Whole numbers, whose sum is the same in any order: of runs of frames that workers read.
constexpr double SHIFTS_PER_ANGSTROM = 1 << 20;

void load(const char* from, int64_t atom, float* x) { std::memcpy(x, from + 12 * atom, 12); }
void store(char* to, int64_t atom, const float* x) { std::memcpy(to + 12 * atom, x, 12); }

void centre_of(const char* data, const Molecules& molecules, int64_t i, double* centre) {
    centre[0] = centre[1] = centre[2] = 0;
    for (int64_t at = molecules.starts[i]; at < molecules.starts[i + 1]; ++at) {
        float x[3];
        load(data, molecules.atoms[at], x);
        for (int c = 0; c < 3; ++c) centre[c] += molecules.weights[at] * x[c];
    }
}

void move(char* data, const Molecules& molecules, int64_t i, const Cell& cell, const double* n) {
    for (int64_t at = molecules.starts[i]; at < molecules.starts[i + 1]; ++at) {
        float x[3];
        load(data, molecules.atoms[at], x);
        cell.subtract(x, n[0], n[1], n[2]);
        store(data, molecules.atoms[at], x);
    }
}

constexpr int64_t BLOCK = 128;
constexpr double MANY = 1 << 30;

// What compilers make vectors of; floor() is a call on some processors.
MDIO_INLINE double rounded_down(double f) {
    const double towards_zero = double(int32_t(f));
    return towards_zero - (towards_zero > f ? 1.0 : 0.0);
}

// Puts atoms that lie one after the other into the cell, each by itself; false, with all left as
// they are, if some are no numbers, or further off than can be counted.
MDIO_INLINE bool put_block(char* data, int64_t n, const Cell& cell) {
    float raw[3 * BLOCK];
    double x[BLOCK], y[BLOCK], z[BLOCK], a[BLOCK], b[BLOCK], c[BLOCK];
    std::memcpy(raw, data, size_t(12 * n));
    for (int64_t i = 0; i < n; ++i) x[i] = raw[3 * i], y[i] = raw[3 * i + 1], z[i] = raw[3 * i + 2];
    for (int64_t i = 0; i < n; ++i) {
        const double from[3] = {x[i], y[i], z[i]};
        double f[3];
        cell.fractions(from, f);
        a[i] = f[0], b[i] = f[1], c[i] = f[2];
    }
    int64_t n_countable = 0;
    for (int64_t i = 0; i < n; ++i)
        n_countable += std::fabs(a[i]) + std::fabs(b[i]) + std::fabs(c[i]) < MANY ? 1 : 0;
    if (n_countable < n) return false;
    for (int64_t i = 0; i < n; ++i) {
        const double na = rounded_down(a[i]), nb = rounded_down(b[i]), nc = rounded_down(c[i]);
        a[i] = x[i] - (na * cell.xx + nb * cell.yx + nc * cell.zx);
        b[i] = y[i] - (nb * cell.yy + nc * cell.zy);
        c[i] = z[i] - nc * cell.zz;
    }
    for (int64_t i = 0; i < n; ++i)
        raw[3 * i] = float(a[i]), raw[3 * i + 1] = float(b[i]), raw[3 * i + 2] = float(c[i]);
    std::memcpy(data, raw, size_t(12 * n));
    return true;
}

#if defined(__GNUC__) && !defined(__clang__)
#define MDIO_NO_TRAPS __attribute__((optimize("no-trapping-math")))  // else GCC makes no vectors
#else
#define MDIO_NO_TRAPS
#endif

MDIO_NO_TRAPS bool put_plain(char* data, int64_t n, const Cell& cell) {
    return put_block(data, n, cell);
}
MDIO_NO_TRAPS MDIO_TARGET("avx2") bool put_avx2(char* data, int64_t n, const Cell& cell) {
    return put_block(data, n, cell);
}

// Molecules `first` to `last` of one atom each, in order and not weighed.
bool are_single(const Molecules& molecules, int64_t first, int64_t last) {
    bool all = molecules.starts[last] - molecules.starts[first] == last - first;
    const int64_t atom = molecules.atoms[molecules.starts[first]];
    for (int64_t i = first; all && i < last; ++i) {
        const int64_t at = molecules.starts[i];
        all = molecules.starts[i + 1] - at == 1 && molecules.atoms[at] == atom + i - first &&
              molecules.weights[at] == 1;
    }
    return all;
}

// Of a way in fractions: over which boundaries it would be shortest. Ways beyond all reason, or that
// are not numbers, stay.
void jump(Cell& cell, double* moved) {
    for (int c = 0; c < 3; ++c)
        if (!(std::fabs(moved[c]) < FAR)) return;
    const double way[3] = {moved[0] * cell.xx + moved[1] * cell.yx + moved[2] * cell.zx,
                           moved[1] * cell.yy + moved[2] * cell.zy, moved[2] * cell.zz};
    if (cell.is_nearest(way))  // which the fractions of a skewed cell do not tell
        moved[0] = moved[1] = moved[2] = 0;
    else
        cell.nearest(way, moved);
}

// Whether coordinates are finite. An atom is followed from where they last were.
bool are_numbers(const double* x) {
    return (x[0] - x[0]) + (x[1] - x[1]) + (x[2] - x[2]) == 0;
}

// A molecule that is to join the others, and how far it is from the nearest of those.
struct Waiting {
    int64_t molecule;
    double centre[3], squared, shift[3];
};

}  // namespace

void make_whole(const Output& positions, int64_t n_frames, const double* vectors,
                const int64_t* links, int64_t n) {
    for (int64_t frame = 0; frame < n_frames; ++frame) {
        char* data = positions.data + frame * positions.stride;
        Cell cell(vectors + 9 * frame);
        for (const int64_t* link = links; link != links + 2 * n; link += 2) {
            float x[3], fixed[3];
            load(data, link[0], x);
            load(data, link[1], fixed);
            const double apart[3] = {double(x[0]) - fixed[0], double(x[1]) - fixed[1],
                                     double(x[2]) - fixed[2]};
            if (cell.is_nearest(apart)) continue;
            double shift[3];
            if (!std::isfinite(cell.nearest(apart, shift))) continue;  // what is not a number stays
            if (shift[0] == 0 && shift[1] == 0 && shift[2] == 0) continue;
            cell.subtract(x, shift[0], shift[1], shift[2]);
            store(data, link[0], x);
        }
    }
}

void put_in_cell(const Output& positions, int64_t n_frames, const double* vectors,
                 const Molecules& molecules) {
    std::vector<char> single;  // of each block of molecules
    for (int64_t first = 0; first < molecules.n; first += BLOCK)
        single.push_back(are_single(molecules, first, std::min(first + BLOCK, molecules.n)));
    for (int64_t frame = 0; frame < n_frames; ++frame) {
        char* data = positions.data + frame * positions.stride;
        const Cell cell(vectors + 9 * frame);
        for (int64_t i = 0; i < molecules.n; ++i) {
            if (i % BLOCK == 0 && single[size_t(i / BLOCK)]) {
                const int64_t n = std::min(BLOCK, molecules.n - i);
                const int64_t atom = molecules.atoms[molecules.starts[i]];
                if ((has_avx2() ? put_avx2 : put_plain)(data + 12 * atom, n, cell)) {
                    i += n - 1;
                    continue;
                }
            }
            double centre[3], f[3];
            centre_of(data, molecules, i, centre);
            cell.fractions(centre, f);
            if (f[0] >= 0 && f[0] < 1 && f[1] >= 0 && f[1] < 1 && f[2] >= 0 && f[2] < 1) continue;
            if (!are_numbers(f)) continue;  // it stays where it is
            for (double& one : f) one = std::floor(one);
            move(data, molecules, i, cell, f);
        }
    }
}

// Prim's tree of shortest distances between centres, from the molecule next to the middle.
void gather(const Output& positions, int64_t n_frames, const double* vectors,
            const Molecules& molecules) {
    std::vector<Waiting> waiting;
    for (int64_t frame = 0; frame < n_frames; ++frame) {
        char* data = positions.data + frame * positions.stride;
        Cell cell(vectors + 9 * frame);
        double last[3] = {(cell.xx + cell.yx + cell.zx) / 2, (cell.yy + cell.zy) / 2, cell.zz / 2};
        waiting.resize(size_t(molecules.n));
        for (int64_t i = 0; i < molecules.n; ++i) {
            Waiting& one = waiting[size_t(i)];
            one.molecule = i;
            one.squared = std::numeric_limits<double>::infinity();
            centre_of(data, molecules, i, one.centre);
        }
        for (bool first = true; !waiting.empty(); first = false) {
            size_t next = 0;
            for (size_t j = 0; j < waiting.size(); ++j) {
                Waiting& one = waiting[j];
                const double apart[3] = {one.centre[0] - last[0], one.centre[1] - last[1],
                                         one.centre[2] - last[2]};
                double shift[3];
                const double squared = cell.nearest(apart, shift);
                if (squared < one.squared) {
                    one.squared = squared;
                    std::copy(shift, shift + 3, one.shift);
                }
                if (one.squared < waiting[next].squared) next = j;
            }
            Waiting& one = waiting[next];
            if (!std::isfinite(one.squared)) break;  // what is not a number stays
            std::copy(one.centre, one.centre + 3, last);
            if (first) {  // it stays where it is, and nothing is near to the middle any more
                for (Waiting& other : waiting)
                    other.squared = std::numeric_limits<double>::infinity();
            } else {
                const double* n = one.shift;
                last[0] -= n[0] * cell.xx + n[1] * cell.yx + n[2] * cell.zx;
                last[1] -= n[1] * cell.yy + n[2] * cell.zy;
                last[2] -= n[2] * cell.zz;
                if (n[0] != 0 || n[1] != 0 || n[2] != 0)
                    move(data, molecules, one.molecule, cell, n);
            }
            one = waiting.back();
            waiting.pop_back();
        }
    }
}

void centre(const Output& positions, int64_t n_frames, const double* vectors,
            const Indices& picked) {
    for (int64_t frame = 0; frame < n_frames; ++frame) {
        char* data = positions.data + frame * positions.stride;
        const Cell cell(vectors + 9 * frame);
        double sum[3] = {0, 0, 0};
        float x[3];
        for (int64_t i = 0; i < picked.n; ++i) {
            load(data, picked.data[i], x);
            for (int c = 0; c < 3; ++c) sum[c] += x[c];
        }
        const double n = double(picked.n);
        const double shift[3] = {(cell.xx + cell.yx + cell.zx) / 2 - sum[0] / n,
                                 (cell.yy + cell.zy) / 2 - sum[1] / n, cell.zz / 2 - sum[2] / n};
        for (int64_t atom = 0; atom < positions.n_atoms; ++atom) {
            load(data, atom, x);
            for (int c = 0; c < 3; ++c) x[c] = float(x[c] + shift[c]);
            store(data, atom, x);
        }
    }
}

void follow(const Output& positions, int64_t n_frames, const double* vectors, double* last,
            int64_t* shifts, bool known, bool apply) {
    for (int64_t frame = 0; frame < n_frames; ++frame) {
        char* data = positions.data + frame * positions.stride;
        Cell cell(vectors + 9 * frame);
        const bool is_skewed = cell.is_skewed();
        double* before = last;
        int64_t* shift = shifts;
        for (int64_t atom = 0; atom < positions.n_atoms; ++atom, before += 3, shift += 3) {
            float x[3];
            load(data, atom, x);
            const double wide[3] = {x[0], x[1], x[2]};
            double f[3];
            cell.fractions(wide, f);
            double moved[3];
            for (int c = 0; c < 3; ++c) moved[c] = f[c] - before[c];
            const bool is_near = !is_skewed && std::fabs(moved[0]) < 0.5 &&
                                 std::fabs(moved[1]) < 0.5 && std::fabs(moved[2]) < 0.5;
            const bool is_followed = !known || is_near || are_numbers(f);
            if (is_followed && known && !is_near) {
                if (is_skewed) jump(cell, moved);
                for (int c = 0; c < 3; ++c)
                    if (std::fabs(moved[c]) >= 0.5 && std::fabs(moved[c]) < FAR)
                        shift[c] += int64_t(std::rint(moved[c]));
            }
            for (int c = 0; c < 3; ++c) before[c] = is_followed ? f[c] : before[c];
            if (apply && (shift[0] | shift[1] | shift[2])) {
                cell.subtract(x, double(shift[0]), double(shift[1]), double(shift[2]));
                store(data, atom, x);
            }
        }
        known = true;
    }
}

void follow_steps(const Output& positions, int64_t n_frames, const double* vectors, double* last,
                  int64_t* shifts, bool known, bool apply) {
    for (int64_t frame = 0; frame < n_frames; ++frame) {
        char* data = positions.data + frame * positions.stride;
        Cell cell(vectors + 9 * frame);
        double* before = last;
        int64_t* shift = shifts;
        for (int64_t atom = 0; atom < positions.n_atoms; ++atom, before += 3, shift += 3) {
            float x[3];
            load(data, atom, x);
            const double wide[3] = {x[0], x[1], x[2]};
            double step[3], n[3];
            bool is_step = known;  // what is not a number has not jumped
            for (int c = 0; c < 3; ++c) {
                step[c] = wide[c] - before[c];
                is_step = is_step && std::fabs(step[c]) < FAR;
            }
            if (are_numbers(wide) || !known)
                for (int c = 0; c < 3; ++c) before[c] = wide[c];
            if (is_step && !cell.is_nearest(step)) {
                cell.nearest(step, n);
                const double jump[3] = {n[0] * cell.xx + n[1] * cell.yx + n[2] * cell.zx,
                                        n[1] * cell.yy + n[2] * cell.zy, n[2] * cell.zz};
                for (int c = 0; c < 3; ++c) shift[c] += std::llrint(jump[c] * SHIFTS_PER_ANGSTROM);
            }
            if (apply && (shift[0] | shift[1] | shift[2])) {
                for (int c = 0; c < 3; ++c) x[c] = float(x[c] - double(shift[c]) / SHIFTS_PER_ANGSTROM);
                store(data, atom, x);
            }
        }
        known = true;
    }
}

}  // namespace mdio

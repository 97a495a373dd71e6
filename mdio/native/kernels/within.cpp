// Which atoms lie within a distance of any of some others, periodic images included.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "kernels.h"

namespace mdio {
namespace {

struct Point {
    double x[3];
};

bool is_finite(const Point& p) {
    return std::isfinite(p.x[0]) && std::isfinite(p.x[1]) && std::isfinite(p.x[2]);
}

Point atom(const char* frame, int64_t i) {
    float xyz[3];
    std::memcpy(xyz, frame + 12 * i, 12);
    return {{xyz[0], xyz[1], xyz[2]}};
}

// A cell with its vectors as rows of a lower triangle, or none.
struct Cell {
    const double* v;
    bool periodic;
    double width[3];  // distances of opposite faces

    Cell(const double* vectors, double radius) : v(vectors), periodic(vectors[8] > 0) {
        if (!periodic) return;
        const double by = v[4], cz = v[8], bx = v[3], cx = v[6], cy = v[7];
        width[0] = v[0] * by * cz /
                   std::sqrt(by * by * cz * cz + bx * bx * cz * cz +
                             (bx * cy - by * cx) * (bx * cy - by * cx));
        width[1] = by * cz / std::sqrt(cy * cy + cz * cz);
        width[2] = cz;
        if (radius > *std::min_element(width, width + 3))  // there would be images without end
            throw std::invalid_argument("the radius is larger than the cell of some frame");
    }

    // Moves a point into the cell and returns where it is, in units of the vectors.
    Point wrap(Point& p) const {
        Point s;
        s.x[2] = p.x[2] / v[8];
        s.x[1] = (p.x[1] - s.x[2] * v[7]) / v[4];
        s.x[0] = (p.x[0] - s.x[2] * v[6] - s.x[1] * v[3]) / v[0];
        for (int k = 0; k < 3; ++k) {
            const double n = std::floor(s.x[k]);
            s.x[k] -= n;
            if (n != 0)
                for (int axis = 0; axis <= k; ++axis) p.x[axis] -= n * v[3 * k + axis];
        }
        return s;
    }
};

// The sources and those of their images that may be near the cell.
void images(const char* frame, const int64_t* sources, int64_t n, const Cell& cell, double radius,
            std::vector<Point>& out) {
    out.clear();
    for (int64_t i = 0; i < n; ++i) {
        Point p = atom(frame, sources[i]);
        if (!is_finite(p)) continue;
        if (!cell.periodic) {
            out.push_back(p);
            continue;
        }
        const Point s = cell.wrap(p);
        int64_t first[3], last[3];
        for (int k = 0; k < 3; ++k) {
            const double margin = radius / cell.width[k] + 1e-9;
            first[k] = int64_t(std::ceil(-margin - s.x[k]));
            last[k] = int64_t(std::floor(1 + margin - s.x[k]));
        }
        for (int64_t c = first[2]; c <= last[2]; ++c)
            for (int64_t b = first[1]; b <= last[1]; ++b)
                for (int64_t a = first[0]; a <= last[0]; ++a) {
                    const double* v = cell.v;
                    out.push_back({{p.x[0] + double(a) * v[0] + double(b) * v[3] + double(c) * v[6],
                                    p.x[1] + double(b) * v[4] + double(c) * v[7],
                                    p.x[2] + double(c) * v[8]}});
                }
    }
}

// Points sorted into bricks no thinner than the radius; rows of bricks lie together along x.
class Bricks {
public:
    void fill(const std::vector<Point>& points, double radius) {
        Point high = low_ = points[0];
        for (const Point& p : points)
            for (int k = 0; k < 3; ++k) {
                low_.x[k] = std::min(low_.x[k], p.x[k]);
                high.x[k] = std::max(high.x[k], p.x[k]);
            }
        const double most = std::cbrt(8.0 * double(points.size())) + 8;
        for (int k = 0; k < 3; ++k) {
            const double length = high.x[k] - low_.x[k];
            n_[k] = std::max<int64_t>(1, int64_t(std::min(length / radius, most)));
            // A little wider, so that rounding puts nothing that is near two bricks away.
            edge_[k] = std::max(length / double(n_[k]), radius) * (1 + 1e-12) + 1e-9;
        }
        starts_.assign(size_t(n_[0] * n_[1] * n_[2] + 1), 0);
        where_.resize(points.size());
        for (size_t i = 0; i < points.size(); ++i) {
            int64_t at[3];
            for (int k = 0; k < 3; ++k) at[k] = std::min(brick(points[i], k), n_[k] - 1);
            where_[i] = index(at[0], at[1], at[2]);
            ++starts_[where_[i] + 1];
        }
        for (size_t i = 1; i < starts_.size(); ++i) starts_[i] += starts_[i - 1];
        sorted_.resize(points.size());
        next_.assign(starts_.begin(), starts_.end() - 1);
        for (size_t i = 0; i < points.size(); ++i) sorted_[next_[where_[i]]++] = points[i];
    }

    bool any_within(const Point& p, double squared) const {
        int64_t first[3], last[3];
        for (int k = 0; k < 3; ++k) {
            const double at = (p.x[k] - low_.x[k]) / edge_[k];
            if (!(at >= -1.0 && at <= double(n_[k]) + 1.0)) return false;
            first[k] = std::max<int64_t>(0, int64_t(std::floor(at)) - 1);
            last[k] = std::min<int64_t>(n_[k] - 1, int64_t(std::floor(at)) + 1);
        }
        if (first[0] > last[0]) return false;
        for (int64_t c = first[2]; c <= last[2]; ++c)
            for (int64_t b = first[1]; b <= last[1]; ++b) {
                const size_t end = starts_[index(last[0], b, c) + 1];
                for (size_t i = starts_[index(first[0], b, c)]; i < end; ++i) {
                    const double x = sorted_[i].x[0] - p.x[0], y = sorted_[i].x[1] - p.x[1],
                                 z = sorted_[i].x[2] - p.x[2];
                    if (x * x + y * y + z * z <= squared) return true;
                }
            }
        return false;
    }

private:
    int64_t brick(const Point& p, int k) const { return int64_t((p.x[k] - low_.x[k]) / edge_[k]); }
    size_t index(int64_t a, int64_t b, int64_t c) const {
        return size_t((c * n_[1] + b) * n_[0] + a);
    }

    Point low_;
    int64_t n_[3];
    double edge_[3];
    std::vector<size_t> starts_, where_, next_;
    std::vector<Point> sorted_;
};

}  // namespace

void within(const Frames& positions, const double* vectors, const Indices& sources,
            const Indices& targets, double radius, bool* out) {
    std::vector<Point> points;
    Bricks bricks;
    for (int64_t f = 0; f < positions.n_frames; ++f, out += targets.n) {
        const char* frame = positions.data + f * positions.stride;
        const Cell cell(vectors + 9 * f, radius);
        images(frame, sources.data, sources.n, cell, radius, points);
        if (points.empty()) {
            std::fill(out, out + targets.n, false);
            continue;
        }
        bricks.fill(points, radius);
        for (int64_t i = 0; i < targets.n; ++i) {
            Point p = atom(frame, targets.data[i]);
            if (is_finite(p) && cell.periodic) cell.wrap(p);
            out[i] = is_finite(p) && bricks.any_within(p, radius * radius);
        }
    }
}

}  // namespace mdio

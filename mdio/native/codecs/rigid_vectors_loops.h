// From symbols to vectors: included by a file for each kind of processor, which says in MDIO_LANES how
// many atoms are taken at a time.
#include "rigid_math.h"
#include "rigid_part.h"

namespace mdio::rigid {
namespace {

struct PartNumbers : Part {
    MDIO_INLINE explicit PartNumbers(const Part& part) : Part(part) {}
    MDIO_INLINE Ints symbol(int stream, int64_t i) const { return load(symbols[stream] + i); }
    MDIO_INLINE Ints number_of(int stream, int64_t i) const {
        return number(symbol(stream, i), load(raw[stream] + i), raw_bits[stream]);
    }
    MDIO_INLINE Vector vector(int64_t i) const { return {load(x + i), load(y + i), load(z + i)}; }
    MDIO_INLINE Vector vector_before(int64_t i) const {
        return {load(before[0] + i), load(before[1] + i), load(before[2] + i)};
    }
    MDIO_INLINE void put(int64_t i, const Vector& v) const {
        store(v.x, x + i);
        store(v.y, y + i);
        store(v.z, z + i);
    }
};

MDIO_LANES_TARGET
void first_contexts(const Part& part, uint8_t* to) {
    const PartNumbers p(part);
    const bool gathers = has_fast_gathers();
    for (int64_t i = 0; i < p.n; i += LANES) {
        const bool are_adjacent = p.are_adjacent[i / GROUP];
        const Vector second = second_vectors(p.all, p.second_slots + i, are_adjacent, gathers);
        if (!are_adjacent) p.put(i, second);  // else they are loaded again as fast
        store(longest(second), to + i);
    }
}

MDIO_LANES_TARGET
void second_contexts(const Part& part, uint8_t* to) {
    const PartNumbers p(part);
    if (p.kind == SPHERE)
        for (int64_t i = 0; i < p.n; i += LANES)
            store(sphere_context(load(p.squared_lengths + i), p.number_of(0, i)), to + i);
    else
        for (int64_t i = 0; i < p.n; i += LANES) {
            const bool are_adjacent = p.are_adjacent[i / GROUP];
            const Vector v = are_adjacent ? second_vectors(p.all, p.second_slots + i, true, false) : p.vector(i);
            const Vector second = rotated(axis_of(p.symbol(0, i) >> 1), v);
            p.put(i, second);
            store(circle_context(plane(second, load(p.squared_lengths + i), p.second_square)), to + i);
        }
}

MDIO_LANES_TARGET
void third_contexts(const Part& part, uint8_t* to) {
    const PartNumbers p(part);
    if (p.kind == SPHERE)
        for (int64_t i = 0; i < p.n; i += LANES) {
            const Floats side = third(load(p.squared_lengths + i), p.number_of(0, i), p.number_of(1, i));
            const Ints n = whole(side);
            store(n, p.x + i);
            store(quarter(side, n), to + i);
        }
    else
        for (int64_t i = 0; i < p.n; i += LANES) {
            const Floats square = load(p.squared_lengths + i);
            const Plane u = plane(p.vector(i), square, p.second_square);
            const Ints v = plus(centre(u), p.number_of(1, i));
            const CirclePoint both = circle_point(u, square, v, p.symbol(0, i) & 1);
            p.put(i, {v, both.y, both.z});
            store(both.context, to + i);
        }
}

MDIO_LANES_TARGET
void finish(const Part& part) {
    const PartNumbers p(part);
    if (p.kind == FREE)
        for (int64_t i = 0; i < p.n; i += LANES) p.put(i, {p.number_of(0, i), p.number_of(1, i), p.number_of(2, i)});
    if (p.kind == TIME)
        for (int64_t i = 0; i < p.n; i += LANES) {
            const Vector v = p.vector_before(i);
            p.put(i, {plus(v.x, p.number_of(0, i)), plus(v.y, p.number_of(1, i)), plus(v.z, p.number_of(2, i))});
        }
    if (p.kind == SWING)
        for (int64_t i = 0; i < p.n; i += LANES) {
            const Vector v = p.vector_before(i);
            const Ints axis = longest(v);
            const Vector before = rotated(axis, v);
            const Ints a = plus(before.y, p.number_of(0, i)), b = plus(before.z, p.number_of(1, i));
            const Ints side = plus(whole(third(load(p.squared_lengths + i), a, b)), p.number_of(2, i));
            p.put(i, rotated_back(axis, {negated_if(sign_of(before.x), side), a, b}));
        }
    if (p.kind == SPHERE)
        for (int64_t i = 0; i < p.n; i += LANES) {
            const Ints how = p.symbol(2, i), axis = axis_of(how >> 1);
            const Ints side = plus(load(p.x + i), (how >> 3) + SPHERE_MIN);
            p.put(i, rotated_back(axis, {negated_if(-(how & 1), side), p.number_of(0, i), p.number_of(1, i)}));
        }
    if (p.kind == CIRCLE)
        for (int64_t i = 0; i < p.n; i += LANES) {
            const Ints how = p.symbol(2, i), axis = axis_of(p.symbol(0, i) >> 1);
            const Vector v = p.vector(i);
            const Ints y = plus(v.y, (how >> 3) + CIRCLE_MIN), z = plus(v.z, (how & 7) + CIRCLE_MIN);
            p.put(i, rotated_back(axis, {v.x, y, z}));
        }
}

}  // namespace
}  // namespace mdio::rigid

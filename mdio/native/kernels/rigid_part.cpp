// From symbols to vectors.
#include "rigid_part.h"

namespace mdio::rigid {
namespace {

MDIO_INLINE void first_contexts_plain(const Part& part, int32_t* to) {
    const Part p = part;
    for (int64_t i = 0; i < p.n; i += 8) store(longest(p.second(i)), to + i);
}

MDIO_INLINE void second_contexts_plain(const Part& part, int32_t* to) {
    const Part p = part;
    if (p.kind == SPHERE)
        for (int64_t i = 0; i < p.n; i += 8) store(sphere_context(load(p.squares + i), p.get(0, i)), to + i);
    else
        for (int64_t i = 0; i < p.n; i += 8) store(circle_context(p.plane_at(i)), to + i);
}

MDIO_INLINE void third_contexts_plain(const Part& part, int32_t* to) {
    const Part p = part;
    if (p.kind == SPHERE)
        for (int64_t i = 0; i < p.n; i += 8) {
            const Floats side = third(load(p.squares + i), p.get(0, i), p.get(1, i));
            const Ints n = whole(side);
            store(n, p.x + i);
            store(fraction(side, n), to + i);
        }
    else
        for (int64_t i = 0; i < p.n; i += 8) {
            const Plane plane = p.plane_at(i);
            const Ints v = plus(centre(plane), p.get(1, i));
            const Two both = two(plane, load(p.squares + i), v, (p.symbol(0, i) & 1) != 0);
            p.put(i, {v, both.y, both.z});
            store(both.context, to + i);
        }
}

MDIO_INLINE bool finish_plain(const Part& part) {
    const Part p = part;
    if (p.kind == FREE)
        for (int64_t i = 0; i < p.n; i += 8) p.put(i, {p.get(0, i), p.get(1, i), p.get(2, i)});
    if (p.kind == TIME)
        for (int64_t i = 0; i < p.n; i += 8) {
            const Vector v = p.earlier(i);
            p.put(i, {plus(v.x, p.get(0, i)), plus(v.y, p.get(1, i)), plus(v.z, p.get(2, i))});
        }
    if (p.kind == SWING)
        for (int64_t i = 0; i < p.n; i += 8) {
            const Vector v = p.earlier(i);
            const Ints axis = longest(v);
            const Vector before = turned(axis, v);
            const Ints a = plus(before.y, p.get(0, i)), b = plus(before.z, p.get(1, i));
            const Ints side = plus(whole(third(load(p.squares + i), a, b)), p.get(2, i));
            p.put(i, turned_back(axis, {signed_by(before.x < 0, side), a, b}));
        }
    if (p.kind == SPHERE)
        for (int64_t i = 0; i < p.n; i += 8) {
            const Ints how = p.symbol(2, i), axis = axis_of(how >> 1);
            const Ints side = plus(load(p.x + i), (how >> 3) + SPHERE_LEAST);
            p.put(i, turned_back(axis, {signed_by((how & 1) != 0, side), p.get(0, i), p.get(1, i)}));
        }
    if (p.kind == CIRCLE)
        for (int64_t i = 0; i < p.n; i += 8) {
            const Ints how = p.symbol(2, i), axis = axis_of(p.symbol(0, i) >> 1);
            const Vector v = p.vector(i);
            const Ints y = plus(v.y, (how >> 3) + CIRCLE_LEAST), z = plus(v.z, (how & 7) + CIRCLE_LEAST);
            p.put(i, turned_back(axis, {v.x, y, z}));
        }
    Ints escaped{};
    for (int64_t i = 0; i < p.n; i += 8) escaped |= p.symbol(0, i) == int32_t(ESCAPE);
    const Ints none{};
    return std::memcmp(&escaped, &none, sizeof none) != 0;
}

MDIO_TARGET("avx2")
void first_contexts_avx2(const Part& p, int32_t* to) { first_contexts_plain(p, to); }
MDIO_TARGET("avx2")
void second_contexts_avx2(const Part& p, int32_t* to) { second_contexts_plain(p, to); }
MDIO_TARGET("avx2")
void third_contexts_avx2(const Part& p, int32_t* to) { third_contexts_plain(p, to); }
MDIO_TARGET("avx2")
bool finish_avx2(const Part& p) { return finish_plain(p); }

}  // namespace

void first_contexts(const Part& part, int32_t* to) {
    (has_avx2() ? first_contexts_avx2 : first_contexts_plain)(part, to);
}
void second_contexts(const Part& part, int32_t* to) {
    (has_avx2() ? second_contexts_avx2 : second_contexts_plain)(part, to);
}
void third_contexts(const Part& part, int32_t* to) {
    (has_avx2() ? third_contexts_avx2 : third_contexts_plain)(part, to);
}
bool finish(const Part& part) { return (has_avx2() ? finish_avx2 : finish_plain)(part); }

}  // namespace mdio::rigid

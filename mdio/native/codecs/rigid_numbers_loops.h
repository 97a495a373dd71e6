// Vectors to numbers and symbols, and the contexts that the decoder will find: included as
// rigid_vectors_loops.h is.
#include "rigid_encode.h"
#include "rigid_math.h"

namespace mdio::rigid {
namespace {

MDIO_INLINE Vector vector(const int32_t* const axes[3], int64_t i) {
    return {load(axes[0] + i), load(axes[1] + i), load(axes[2] + i)};
}

// 1 where a number is not from 0 to `most`; 1 where it is negative.
MDIO_INLINE Ints beyond(const Ints& x, int32_t most) {
    return Sizes(x) > uint32_t(most) ? Ints{} + 1 : Ints{};
}
MDIO_INLINE Ints sign_bit(const Ints& x) { return Ints(Sizes(x) >> 31); }

// The contexts of three streams.
using ContextsOf = Vector;

MDIO_INLINE Ints with_context(const Ints& symbol, const Ints& context) { return (symbol & 255) | context * 256; }

template <Kind kind>
MDIO_INLINE void put(const VectorNumbers& to, int64_t i, const Vector& v,
                     const ContextsOf& contexts = {Ints{}, Ints{}, Ints{}}, const Ints& out_of_range = Ints{}) {
    Ints bad = out_of_range;
    const auto put_stream = [&](int stream, const Ints& x, const Ints& context) __attribute__((always_inline)) {
        const Ints symbol = (x >> to.raw[stream]) + (is_centred(kind, stream) ? ZERO_SYMBOL : 0);
        bad |= beyond(symbol, MAX_SYMBOL);
        store(x, to.numbers[stream] + i);
        store(with_context(symbol, context), to.symbols[stream] + i);
    };
    put_stream(0, v.x, contexts.x);
    put_stream(1, v.y, contexts.y);
    put_stream(2, v.z, contexts.z);
    store(bad, to.bad + i);
}

MDIO_INLINE void swing_to_numbers(const ClassVectors& s, int64_t i, const VectorNumbers& to) {
    const Vector v = vector(s.before, i);
    const Ints axis = longest(v);
    const Vector before = rotated(axis, v), now = rotated(axis, vector(s.now, i));
    const Ints side = whole(third(load(s.squared_lengths + i), now.y, now.z));
    const Ints off = minus(negated_if(sign_of(before.x), now.x), side);
    put<SWING>(to, i, {minus(now.y, before.y), minus(now.z, before.z), off});
}

MDIO_INLINE void sphere_to_numbers(const ClassVectors& s, int64_t i, const VectorNumbers& to) {
    const Vector v = vector(s.now, i);
    const Ints axis = longest(v);
    const Vector now = rotated(axis, v);
    const Floats square = load(s.squared_lengths + i), side = third(square, now.y, now.z);
    const Ints n = whole(side), off = minus(absolute(now.x), n);
    const Ints bad = beyond(off - SPHERE_MIN, SPHERE_MAX - SPHERE_MIN);
    const Ints how = (off - SPHERE_MIN) * 8 + 2 * axis + sign_bit(now.x);
    const ContextsOf contexts = {Ints{}, sphere_context(square, now.y), quarter(side, n)};
    put<SPHERE>(to, i, {now.y, now.z, bad != 0 ? Ints{} : how}, contexts, bad);
}

MDIO_INLINE void circle_to_numbers(const ClassVectors& s, int64_t i, const VectorNumbers& to, bool gathers) {
    const Vector v = vector(s.now, i);
    const Vector second = second_vectors(s.all, s.second_slots + i, s.are_adjacent[i / GROUP], gathers);
    // Where the circle runs most nearly along an axis, the other two follow best from it.
    const Floats fx = floats(second.x), fy = floats(second.y), fz = floats(second.z);
    const Floats gx = floats(v.x), gy = floats(v.y), gz = floats(v.z);
    const Floats x = fy * gz - fz * gy, y = fz * gx - fx * gz, z = fx * gy - fy * gx;
    const Floats a = magnitude(x), b = magnitude(y), c = magnitude(z), least = b >= c ? b : c;
    const Ints last = b >= c ? Ints{} + 1 : Ints{} + 2, axis = a >= least ? Ints{} : last;
    const Floats square = load(s.squared_lengths + i);
    const Plane u = plane(rotated(axis, second), square, s.second_square);
    const Vector now = rotated(axis, v);
    // Which of both points of the circle it is: they lie on either side of the second atom's vector.
    const Floats along_last = axis == 1 ? y : z, along = axis == 0 ? x : along_last;
    const Ints other = along < 0.0f ? Ints{} + 1 : Ints{};
    const CirclePoint both = circle_point(u, square, now.x, other);
    const Ints one = minus(now.y, both.y) - CIRCLE_MIN, another = minus(now.z, both.z) - CIRCLE_MIN;
    const Ints bad = beyond(one | another, CIRCLE_MAX - CIRCLE_MIN);  // each has three bits if it fits
    const Vector numbers = {2 * axis + other, minus(now.x, centre(u)), bad != 0 ? Ints{} : one * 8 + another};
    put<CIRCLE>(to, i, numbers, {longest(second), circle_context(u), both.context}, bad);
}

MDIO_LANES_TARGET
void to_numbers(const ClassVectors& from, const VectorNumbers& numbers) {
    const ClassVectors s = from;
    const VectorNumbers to = numbers;
    const bool gathers = has_fast_gathers();
    if (s.kind == CIRCLE)
        for (int64_t i = 0; i < s.n; i += LANES) circle_to_numbers(s, i, to, gathers);
    if (s.kind == SPHERE)
        for (int64_t i = 0; i < s.n; i += LANES) sphere_to_numbers(s, i, to);
    if (s.kind == SWING)
        for (int64_t i = 0; i < s.n; i += LANES) swing_to_numbers(s, i, to);
    if (s.kind == TIME)
        for (int64_t i = 0; i < s.n; i += LANES) {
            const Vector v = vector(s.now, i), w = vector(s.before, i);
            put<TIME>(to, i, {minus(v.x, w.x), minus(v.y, w.y), minus(v.z, w.z)});
        }
    if (s.kind == FREE)
        for (int64_t i = 0; i < s.n; i += LANES) put<FREE>(to, i, vector(s.now, i));
}

MDIO_LANES_TARGET
void set_contexts(const Contexts& of) {
    const Contexts p = of;
    const bool gathers = has_fast_gathers();
    const int raw[2] = {p.raw[0], p.raw[1]};
    const auto symbol = [&](int stream, int64_t i) __attribute__((always_inline)) {
        return load(p.symbols[stream] + i) & 255;
    };
    const auto put_contexts = [&](int64_t i, const ContextsOf& contexts) __attribute__((always_inline)) {
        store(with_context(symbol(0, i), contexts.x), p.symbols[0] + i);
        store(with_context(symbol(1, i), contexts.y), p.symbols[1] + i);
        store(with_context(symbol(2, i), contexts.z), p.symbols[2] + i);
    };
    const auto get = [&](int stream, int64_t i) __attribute__((always_inline)) {
        const Ints low = load(p.numbers[stream] + i) & ((1 << raw[stream]) - 1);
        return number(symbol(stream, i), low, raw[stream]);
    };
    if (p.kind == SPHERE)
        for (int64_t i = 0; i < p.n; i += LANES) {
            const Ints a = get(0, i);
            const Floats square = load(p.squared_lengths + i), side = third(square, a, get(1, i));
            put_contexts(i, {Ints{}, sphere_context(square, a), quarter(side, whole(side))});
        }
    else
        for (int64_t i = 0; i < p.n; i += LANES) {
            const Ints how = symbol(0, i);
            const Vector second = second_vectors(p.all, p.second_slots + i, p.are_adjacent[i / GROUP], gathers);
            const Floats square = load(p.squared_lengths + i);
            const Plane u = plane(rotated(axis_of(how >> 1), second), square, p.second_square);
            const CirclePoint both = circle_point(u, square, plus(centre(u), get(1, i)), how & 1);
            put_contexts(i, {longest(second), circle_context(u), both.context});
        }
}

}  // namespace
}  // namespace mdio::rigid

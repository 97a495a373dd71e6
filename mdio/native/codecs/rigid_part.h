// Some atoms of a class in one frame, as the reader has them.
#pragma once

#include "rigid_encode.h"
#include "rigid_learn.h"

namespace mdio::rigid {

// One class of one frame: its symbols and raw bits, and the vectors they become. Atoms are taken
// in groups; what is behind the last is some number.
struct Part {
    Kind kind;
    int64_t n;
    int raw_bits[STREAMS];
    float other;
    const uint8_t* symbols[STREAMS];
    const uint16_t* raw[STREAMS];
    int32_t *x, *y, *z;
    const int32_t* before[3];  // of the frame before
    const int32_t *all[3], *seconds;
    const uint8_t* in_row;
    const float* squares;
};

// What there is for each kind of processor: what the symbols of a stream go by, one stream after the
// other (what is found on the way is left where the vectors will be), and last the vectors; and what the
// writer needs.
struct Steps {
    void (*contexts[STREAMS])(const Part& part, uint8_t* to);
    void (*finish)(const Part& part);
    void (*tell)(const Source& from, const Told& to);
    void (*symbols_of)(const Told& from, const Class& c, int64_t n, uint8_t* const symbols[STREAMS]);
    void (*contexts_of)(const Contexts& from, uint8_t* const to[STREAMS]);
    void (*look)(const Pairs& pairs, Best& best);
};
const Steps& steps();  // of this processor
extern const Steps PLAIN, AVX2, AVX512;

}  // namespace mdio::rigid

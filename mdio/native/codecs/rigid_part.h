// Some atoms of a class in one frame, as the decoder has them.
#pragma once

#include "rigid_encode.h"
#include "rigid_models.h"

namespace mdio::rigid {

// One class of one frame: its symbols and raw bits, and the vectors they become. Atoms are taken
// in groups; values after the last are arbitrary.
struct Part {
    Kind kind;
    int64_t n;
    int raw_bits[STREAMS];
    float second_square;
    const uint8_t* symbols[STREAMS];
    const uint16_t* raw[STREAMS];
    int32_t *x, *y, *z;
    const int32_t* before[3];  // of the frame before
    const int32_t *all[3], *second_slots;
    const uint8_t* are_adjacent;
    const float* squared_lengths;
};

// Functions for one kind of processor. Of the decoder: contexts of each stream in turn, which leave
// intermediate results where the vectors will be, and then the vectors; the others are the encoder's.
struct Steps {
    void (*contexts[STREAMS])(const Part& part, uint8_t* to);
    void (*finish)(const Part& part);
    void (*to_numbers)(const ClassVectors& from, const VectorNumbers& to);
    void (*set_contexts)(const Contexts& of);
    void (*find_models)(const FramePairs& pairs, AtomModels& models);
};
const Steps& steps();  // of this processor
extern const Steps PLAIN, AVX2, AVX512;

}  // namespace mdio::rigid

/* Positions as integers, and these in few bytes: the codecs of mdio as a library in C.
 *
 * Two ways: `rigid`, by what stays the same (lengths, triangles, bonds that turn slowly; docs/rigid.md has the
 * format), and `bitpack`, groups of differences in just the bits that they need (mdio/core/kernels/packed.py).
 * There is no state but what a caller makes, which one thread uses at a time, and no function throws. Whatever
 * bytes are decoded, nothing is read or written outside of them and of what is asked for.
 *
 * Positions are float32, an atom's three after the other, frames `stride` bytes apart; nothing needs to be
 * aligned. Integers are int32. Built with a C++17 compiler from all *.cpp of this folder.
 */
#ifndef MDIO_CODECS_H
#define MDIO_CODECS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mdio_status {
    MDIO_OK = 0,
    MDIO_NO_INTEGERS = 1,     /* positions have none of this step: not finite, too large, or not those of an XTC */
    MDIO_DAMAGED = 2,         /* bytes do not fit together; mdio_message says why */
    MDIO_NO_MEMORY = 3,
    MDIO_WRONG_ARGUMENT = 4
} mdio_status;

/* What is kept from one call to the next: new memory takes time. */
typedef struct mdio_memory mdio_memory;
mdio_memory *mdio_memory_new(void); /* null where there is none */
void mdio_memory_free(mdio_memory *memory);
/* What the last call that failed says, in English; lasts until the next one. */
const char *mdio_message(const mdio_memory *memory);

/* Integers are rint(x / number) of a step, in float64; or those that an XTC of a precision (per nm) holds, whose
 * positions in angstrom come back bit for bit. */
typedef struct mdio_coding {
    double number;
    int is_xtc;
} mdio_coding;

typedef struct mdio_frames {
    const char *data;
    int64_t n_frames, n_atoms, stride;
} mdio_frames;

/* Frames from `first` to before `last`, and of these `n_atoms` atoms, all of them where `atoms` is null. */
typedef struct mdio_output {
    char *data;
    int64_t n_atoms, stride;
} mdio_output;
typedef struct mdio_selection {
    const int64_t *atoms;
    int64_t first, last;
} mdio_selection;

/* A chunk of `rigid`: the description shrinks when compressed, the data do not. */
typedef struct mdio_rigid {
    const uint8_t *description;
    int64_t description_nbytes;
    const uint8_t *data;
    int64_t nbytes;
    int64_t n_frames, n_atoms;
} mdio_rigid;

/* Of at least two frames. `key_every`: every so many frames there is one that depends on none before it, up to 255.
 * `min_section_atoms`: so many atoms can be decoded without the others, up to 4,096. 0: only all. What is made lasts
 * until the next call. */
mdio_status mdio_rigid_encode(mdio_memory *memory, const mdio_frames *positions, mdio_coding coding, int key_every,
                              int min_section_atoms, mdio_rigid *made);
mdio_status mdio_rigid_decode(mdio_memory *memory, const mdio_rigid *from, mdio_coding coding,
                              const mdio_selection *selection, const mdio_output *out);

/* For `bitpack`. Integers of all frames, (frames, atoms, 3): the first as it is, others less the frame before. */
mdio_status mdio_quantise(const mdio_frames *positions, mdio_coding coding, int32_t *deltas);
/* Whether differences along the atoms are likely to be smaller; `kept`, a byte for each atom, then has them, and
 * the second function puts them in the place of `deltas`. Else each atom of the first frame is to be less the one
 * before it. */
mdio_status mdio_choose_neighbours(mdio_memory *memory, const int32_t *deltas, int64_t n_frames, int64_t n_atoms,
                                   uint8_t *kept, int *is_better);
mdio_status mdio_difference_neighbours(mdio_memory *memory, int32_t *deltas, int64_t n_frames, int64_t n_atoms,
                                       const uint8_t *kept);
/* The most bytes that rows take; packs them into so many, and returns how many are filled. */
int64_t mdio_pack_limit(int64_t n_rows, int64_t n_numbers);
int64_t mdio_pack(const int32_t *rows, int64_t n_rows, int64_t n_numbers, uint8_t *to);

/* A chunk of `bitpack`; `kept` is null for differences along the frames. */
typedef struct mdio_packed {
    const uint8_t *data;
    int64_t nbytes;
    const uint8_t *kept;
    int64_t n_frames, n_atoms;
} mdio_packed;
mdio_status mdio_unpack(mdio_memory *memory, const mdio_packed *from, mdio_coding coding,
                        const mdio_selection *selection, const mdio_output *out);

/* Bytes of each item that lie apart (Blosc's shuffle), and back. */
void mdio_shuffle(const uint8_t *data, size_t nbytes, size_t itemsize, uint8_t *out);
void mdio_unshuffle(const uint8_t *data, size_t nbytes, size_t itemsize, uint8_t *out);

#ifdef __cplusplus
}
#endif

#endif

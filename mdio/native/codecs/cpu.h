// Which instructions this processor has. The build names no processor, so that one binary runs on
// all of them: functions for newer ones carry MDIO_TARGET and are called only where these say so.
#pragma once

#include <cstdint>
#ifdef MDIO_SWITCHES
#include <atomic>
#endif

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define MDIO_X86 1
#define MDIO_TARGET(features) __attribute__((target(features)))
#define MDIO_AVX512 "avx512f,avx512vl,avx512bw,avx512dq,popcnt"
#include <cpuid.h>
#include <immintrin.h>
#else
#define MDIO_X86 0
#define MDIO_TARGET(features)
#endif

// For files that have one kind of processor, after the headers of the standard library, of which files
// share what is not inlined. GCC splits vectors longer than a function's own before it puts the function
// into its caller, so that the target of the caller alone is not enough; and AVX-512 has instructions
// that round a product and a sum as one, which nobody asked for. Clang has no such vectors in functions
// without a target either, and needs to know where the file's target ends.
#define MDIO_PRAGMA(text) _Pragma(#text)
#if defined(__clang__) && MDIO_X86
#define MDIO_FILE_TARGET(features)        \
    _Pragma("clang fp contract(off)") MDIO_PRAGMA( \
        clang attribute push(__attribute__((target(features))), apply_to = function))
#define MDIO_FILE_TARGET_END _Pragma("clang attribute pop")
#elif MDIO_X86
#define MDIO_FILE_TARGET(features) \
    MDIO_PRAGMA(GCC optimize("fp-contract=off")) MDIO_PRAGMA(GCC target(features))
#define MDIO_FILE_TARGET_END
#else  // compiled, and never called
#define MDIO_FILE_TARGET(features)
#define MDIO_FILE_TARGET_END
#endif

// For loops that are written once and compiled for both the plain and the newer instructions.
#define MDIO_INLINE inline __attribute__((always_inline))

namespace mdio {

#ifdef MDIO_SWITCHES
// Set by tests, which have to see the plain code run on processors that can do better.
inline std::atomic<bool> plain_only{false}, avx2_only{false}, loads_only{false};
#else
constexpr bool plain_only = false, avx2_only = false, loads_only = false;
#endif

inline bool has_avx2() {
#if MDIO_X86
    static const bool found = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return found && !plain_only;
#else
    return false;
#endif
}

// The instructions on vectors of 64 bytes that all processors with AVX-512 but the first have.
inline bool has_avx512() {
#if MDIO_X86
    static const bool found = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                              __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    return found && has_avx2() && !avx2_only;
#else
    return false;
#endif
}

// Whether one instruction loads entries of a table faster than they are loaded one by one: on Intel's processors with
// AVX-512 for halves of floats, which need no microcode against leaks by this instruction.
inline bool has_fast_gathers() {
#if MDIO_X86
    static const bool found = [] {
        uint32_t a = 0, b = 0, c = 0, d = 0;
        return __builtin_cpu_is("intel") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 23 & 1;
    }();
    return found && !loads_only;
#else
    return false;
#endif
}

}  // namespace mdio

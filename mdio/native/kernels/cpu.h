// Which instructions this processor has. The build names no processor, so that one binary runs on
// all of them: functions for newer ones carry MDIO_TARGET and are called only where these say so.
#pragma once

#include <atomic>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define MDIO_X86 1
#define MDIO_TARGET(features) __attribute__((target(features)))
#include <immintrin.h>
#else
#define MDIO_X86 0
#define MDIO_TARGET(features)
#endif

// For loops that are written once and compiled for both the plain and the newer instructions.
#define MDIO_INLINE inline __attribute__((always_inline))

namespace mdio {

// Set by tests, which have to see the plain code run on processors that can do better.
inline std::atomic<bool> plain_only{false};

inline bool has_avx2() {
#if MDIO_X86
    static const bool found = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return found && !plain_only;
#else
    return false;
#endif
}

}  // namespace mdio

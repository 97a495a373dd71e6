// What a caller keeps, and how failures become a status: no exception leaves the library.
#pragma once

#include <cmath>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>

#include "mdio_codecs.h"

// Memory that parts of the library keep for themselves.
struct mdio_memory {
    using Any = std::unique_ptr<void, void (*)(void*)>;
    Any encoding{nullptr, nullptr}, decoding{nullptr, nullptr}, unpacking{nullptr, nullptr};
    const char* message = "";

    template <class T>
    static T& kept(Any& of) {
        if (!of) of = {new T, [](void* one) { delete static_cast<T*>(one); }};
        return *static_cast<T*>(of.get());
    }
};

namespace mdio {

// Allocates from a multiple of 64 bytes on, the line of a cache: loads and stores of 64 bytes lie in one.
template <class T>
struct AlignedMemory {
    using value_type = T;
    AlignedMemory() = default;
    template <class U>
    AlignedMemory(const AlignedMemory<U>&) {}

    T* allocate(size_t n) {
        auto* begin = static_cast<unsigned char*>(::operator new(n * sizeof(T) + 64));
        const auto offset = 64 - reinterpret_cast<uintptr_t>(begin) % 64;
        begin[offset - 1] = static_cast<unsigned char>(offset);
        return reinterpret_cast<T*>(begin + offset);
    }
    void deallocate(T* from, size_t) {
        auto* begin = reinterpret_cast<unsigned char*>(from);
        ::operator delete(begin - begin[-1]);
    }
    friend bool operator==(const AlignedMemory&, const AlignedMemory&) { return true; }
    friend bool operator!=(const AlignedMemory&, const AlignedMemory&) { return false; }
};

#if defined(__cpp_exceptions)
struct Damage {
    const char* what;
};
[[noreturn]] inline void fail(const char* what) { throw Damage{what}; }

template <class Work>
mdio_status guarded(mdio_memory& memory, const Work& work) noexcept {
    try {
        return work();
    } catch (const Damage& damage) {
        memory.message = damage.what;
        return MDIO_DAMAGED;
    } catch (const std::exception&) {
        memory.message = "there is not enough memory";
        return MDIO_NO_MEMORY;
    }
}
#else
// JavaScript throws what WebAssembly does not.
extern "C" [[noreturn]] __attribute__((import_module("mdio"), import_name("fail"))) void mdio_fail(const char* what);
[[noreturn]] inline void fail(const char* what) { mdio_fail(what); }

template <class Work>
mdio_status guarded(mdio_memory&, const Work& work) noexcept {
    return work();
}
#endif

inline mdio_status wrong(mdio_memory& memory, const char* what) {
    memory.message = what;
    return MDIO_WRONG_ARGUMENT;
}

// What is wrong with what a caller asks of a chunk: null, if nothing.
inline const char* wrong_with(int64_t n_frames, int64_t n_atoms, const mdio_coding& coding,
                              const mdio_selection& selection, const mdio_output& out) {
    constexpr int64_t MOST_ATOMS = 1 << 29;  // three numbers of each have 32-bit indices
    if (n_frames < 1 || n_atoms < 1 || n_atoms > MOST_ATOMS) return "a chunk has frames, and 1 to 2**29 atoms";
    if (!std::isfinite(coding.number) || coding.number <= 0) return "a step or precision is positive";
    if (selection.first < 0 || selection.first > selection.last || selection.last > n_frames)
        return "there are no such frames";
    if (!selection.atoms) return out.n_atoms == n_atoms ? nullptr : "there is no room for exactly all atoms";
    for (int64_t i = 0; i < out.n_atoms; ++i)
        if (selection.atoms[i] < 0 || selection.atoms[i] >= n_atoms) return "there are no such atoms";
    return nullptr;
}

}  // namespace mdio

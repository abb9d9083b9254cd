// Every access of a kernel, before it happens.
//
// The kernels are compiled with the calls that the kernel's address sanitizer makes (-fsanitize=kernel-address, checks
// out of line); here is what they call. So the kernel is stopped at the access, by name of its thread, and the process
// goes on; and the program that loads the library needs no sanitizer.
//
// A kernel may touch memory of a device that is in use, shared memory, its own stack, and the constants of this
// library. All else is the host's.

#include "access.h"

#include "../cuda.h"
#include "driver.h"

#include <link.h>

namespace prep {

thread_local CUresult found_code = CUDA_ERROR_LAUNCH_FAILED;

namespace {

struct Range {
    uintptr_t first = 0, end = 0;

    bool holds(uintptr_t at, size_t bytes) const { return at >= first && at + bytes <= end; }
};

// One launch runs at a time.
Range constant_bank;

// Where this library lies.
Range loaded() {
    Range found;
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *to) {
            Range object{~uintptr_t(0), 0};
            for (int i = 0; i < info->dlpi_phnum; i++) {
                const auto &part = info->dlpi_phdr[i];
                if (part.p_type == PT_LOAD) {
                    uintptr_t first = info->dlpi_addr + part.p_vaddr, end = first + part.p_memsz;
                    object.first = first < object.first ? first : object.first;
                    object.end = end > object.end ? end : object.end;
                }
            }
            uintptr_t here = reinterpret_cast<uintptr_t>(&loaded);
            bool mine = object.holds(here, 1);
            if (mine) {
                *static_cast<Range *>(to) = object;
            }
            return int(mine);
        },
        &found);
    return found;
}

bool constant(uintptr_t at, size_t bytes) {
    static const Range library = loaded();
    return library.holds(at, bytes) || constant_bank.holds(at, bytes);
}

[[noreturn]] __attribute__((noinline)) void stop(uintptr_t at, size_t bytes, bool writes, const char *what) {
    found_code = CUDA_ERROR_ILLEGAL_ADDRESS;
    std::string place = in_shared_window(at) ? "shared memory beyond its arrays" : driver().memory.describe(at);
    std::string text = (writes ? "writes " : "reads ") + std::to_string(bytes) + " bytes at " + hex(at) + what + ": " + place;
    // The text outlives nothing: the fiber never goes on.
    static thread_local std::string kept;
    kept = std::move(text);
    fail(kept.c_str());
}

inline bool own(uintptr_t at) { return at - place.own < OWN; }

__attribute__((noinline)) void check_elsewhere(uintptr_t at, size_t bytes, bool writes) {
    if (writes || !constant(at, bytes)) {
        stop(at, bytes, writes, "");
    }
}

Arena &a = arena();

template <size_t N> inline void check(uintptr_t at, bool writes) {
    if (!a.holds(at)) {
        return own(at) ? void() : check_elsewhere(at, N, writes);
    }
    if (at % N != 0) {
        stop(at, N, writes, ", not a multiple of its size");
    }
    const unsigned char *marks = a.shadow + (at - a.base) / 8;
    bool open = N <= 8 ? at % 8 + N <= marks[0] : marks[0] + marks[1] == 16;
    if (!open) {
        stop(at, N, writes, "");
    }
}

inline void check_any(uintptr_t at, size_t bytes, bool writes) {
    if (bytes == 0) {
        return;
    }
    if (!a.holds(at)) {
        return own(at) ? void() : check_elsewhere(at, bytes, writes);
    }
    if (!a.may_touch(at, bytes)) {
        stop(at, bytes, writes, "");
    }
}

} // namespace

void set_constant_bank(const void *at, size_t bytes) {
    constant_bank.first = reinterpret_cast<uintptr_t>(at);
    constant_bank.end = constant_bank.first + bytes;
}

} // namespace prep

extern "C" {
#define PREP_CHECK(bytes)                                                                                              \
    void __asan_load##bytes##_noabort(uintptr_t at) { prep::check<bytes>(at, false); }                                 \
    void __asan_store##bytes##_noabort(uintptr_t at) { prep::check<bytes>(at, true); }
PREP_CHECK(1)
PREP_CHECK(2)
PREP_CHECK(4)
PREP_CHECK(8)
PREP_CHECK(16)
void __asan_loadN_noabort(uintptr_t at, size_t bytes) { prep::check_any(at, bytes, false); }
void __asan_storeN_noabort(uintptr_t at, size_t bytes) { prep::check_any(at, bytes, true); }
// What the compilers call besides; there is nothing to do.
void __asan_handle_no_return() {}
void __asan_before_dynamic_init(const char *) {}
void __asan_after_dynamic_init() {}
// clang's in place of the plain ones.
void *__asan_memcpy(void *to, const void *from, size_t bytes) {
    prep::check_any(reinterpret_cast<uintptr_t>(from), bytes, false);
    prep::check_any(reinterpret_cast<uintptr_t>(to), bytes, true);
    return std::memcpy(to, from, bytes);
}
void *__asan_memmove(void *to, const void *from, size_t bytes) {
    prep::check_any(reinterpret_cast<uintptr_t>(from), bytes, false);
    prep::check_any(reinterpret_cast<uintptr_t>(to), bytes, true);
    return std::memmove(to, from, bytes);
}
void *__asan_memset(void *to, int value, size_t bytes) {
    prep::check_any(reinterpret_cast<uintptr_t>(to), bytes, true);
    return std::memset(to, value, bytes);
}
}

// Shared memory of the running block: a window in the devices' range for each thread that runs blocks.

#include "../cuda.h"
#include "access.h"
#include "arena.h"

#include <cstdio>
#include <cstdlib>

namespace prep {

namespace {

const size_t WINDOW = 1 << 20, ALIGN = 128;

struct Window {
    uintptr_t start = 0;
    size_t used = 0;
};
thread_local Window window;

} // namespace

void *shared_room(size_t size) {
    if (window.start == 0) {
        window.start = arena().take(WINDOW);
    }
    uintptr_t at = window.start + window.used;
    // Apart, so that what overshoots one array is not in the next.
    window.used += (size + ALIGN - 1) / ALIGN * ALIGN + ALIGN;
    if (window.start == 0 || window.used > WINDOW) {
        std::fprintf(stderr, "stand-in: no room for shared memory\n");
        std::abort();
    }
    arena().open(at, size);
    return reinterpret_cast<void *>(at);
}

bool in_shared_window(uintptr_t at) { return window.start != 0 && at - window.start < WINDOW; }

void shared_return() {
    if (window.used > 0) {
        arena().close(window.start, window.used, false);
        window.used = 0;
    }
}

} // namespace prep

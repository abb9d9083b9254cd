// How every function of the interface begins and ends: one at a time, the state it needs, what is reported.
#pragma once

#include "driver.h"

namespace prep {

enum class Needs {
    Nothing,
    // cuInit.
    Init,
    // A current context on a device without an error.
    Context,
    // The same, but after an error the call still gives back what it gives back.
    Cleanup,
};

// Checks what the call needs, throws otherwise; throws on demand, too.
void enter(const char *name, Needs needs);
// Notes what went wrong; what the call returns.
CUresult settle(const char *name, Needs needs, const Refusal &refusal);

// A suffix of the symbol, as in cuMemAlloc_v2, is no part of `name`.
template <class F> CUresult call(const char *name, Needs needs, F work) {
    std::lock_guard<std::mutex> lock(driver().mutex);
    try {
        enter(name, needs);
        work();
        return settle(name, needs, Refusal{CUDA_SUCCESS, ""});
    } catch (const Refusal &refusal) {
        return settle(name, needs, refusal);
    }
}

} // namespace prep

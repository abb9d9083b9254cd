// Pinned memory of the host.
#pragma once

#include "refusal.h"

#include <map>

namespace prep {

class HostMemory {
  public:
    // Filled with NaN. What lies behind its last page stops whoever reads it.
    void *allocate(size_t bytes);
    // Memory of the caller's from now on.
    void add(void *at, size_t bytes);
    // Bytes of an allocation; a fault where it was not allocated here, or was freed.
    size_t size(void *at) const;
    // Afterwards it may not be touched.
    void end(void *at);
    void remove(void *at);
    // Whether a range is pinned; a fault where it is none of the host's, or only begins in pinned memory.
    bool pinned(const char *what, const void *at, size_t bytes) const;
    size_t allocated() const;

  private:
    struct Range {
        size_t bytes;
        bool ours, ended;
    };
    std::map<uintptr_t, Range> ranges;
};

} // namespace prep

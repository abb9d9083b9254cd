// Allocations on the devices.
#pragma once

#include "arena.h"
#include "refusal.h"

#include <map>
#include <string>
#include <vector>

namespace prep {

struct Allocation {
    uintptr_t start;
    size_t size;
    int device;
    // The how manieth.
    unsigned number;
    // From cuMemAllocAsync.
    bool ordered;
    // Given out, but the stream has not come to it; in use; its end is asked for; ended.
    enum State { Promised, Live, Ending, Ended } state;
};

class Memory {
  public:
    Memory(size_t capacity, int devices);
    // Of `bytes` for the caller; refuses what does not fit. Promised.
    Allocation &allocate(int device, size_t bytes, bool ordered);
    // Filled with NaN.
    void begin(Allocation &a);
    void end(Allocation &a);
    void end_all(int device);
    // The allocation that begins at this address and was not freed; a fault otherwise.
    Allocation &to_free(CUdeviceptr at);
    // A fault where the range lies in no allocation of this device; `what` names it.
    void require(const char *what, CUdeviceptr at, size_t bytes, int device);
    // A fault of the device where the range may not be touched now.
    void require_live(const char *what, CUdeviceptr at, size_t bytes, int device);
    // What lies at an address, in words.
    std::string describe(uintptr_t at) const;
    size_t free_bytes(int device) const { return capacity - used[device]; }
    size_t peak() const { return most; }
    const size_t capacity;
    const std::map<uintptr_t, Allocation> &all() const { return allocations; }

  private:
    const Allocation *before(uintptr_t at) const;
    std::vector<size_t> used;
    size_t most = 0;
    unsigned made = 0;
    std::map<uintptr_t, Allocation> allocations;
};

std::string hex(uintptr_t at);

} // namespace prep

#include "memory.h"

#include <cstdio>
#include <cstring>

namespace prep {

namespace {

// What an allocation takes of the capacity.
size_t rounded(size_t bytes) { return (bytes + 511) / 512 * 512; }

std::string told(const Allocation &a) {
    const char *states[] = {"promised", "", "freed", "freed"};
    std::string state = states[a.state];
    return (state.empty() ? "" : state + " ") + "allocation " + std::to_string(a.number) + " of " +
           std::to_string(a.size) + " bytes";
}

} // namespace

std::string hex(uintptr_t at) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%zx", size_t(at));
    return text;
}

Memory::Memory(size_t capacity, int devices) : capacity(capacity), used(size_t(devices), 0) {}

Allocation &Memory::allocate(int device, size_t bytes, bool ordered) {
    if (bytes > capacity || rounded(bytes) > free_bytes(device)) {
        refuse(CUDA_ERROR_OUT_OF_MEMORY);
    }
    uintptr_t start = arena().take(bytes);
    if (start == 0) {
        fault(CUDA_ERROR_OUT_OF_MEMORY, "the stand-in has no addresses left");
    }
    used[device] += rounded(bytes);
    most = used[device] > most ? used[device] : most;
    Allocation a{start, bytes, device, ++made, ordered, Allocation::Promised};
    return allocations[start] = a;
}

void Memory::begin(Allocation &a) {
    a.state = a.state == Allocation::Promised ? Allocation::Live : a.state;
    arena().open(a.start, a.size);
    std::memset(reinterpret_cast<void *>(a.start), 0xff, a.size);
}

void Memory::end(Allocation &a) {
    a.state = Allocation::Ended;
    used[a.device] -= rounded(a.size);
    arena().close(a.start, a.size, true);
}

void Memory::end_all(int device) {
    for (auto &entry : allocations) {
        if (entry.second.device == device && entry.second.state != Allocation::Ended) {
            end(entry.second);
        }
    }
}

const Allocation *Memory::before(uintptr_t at) const {
    auto next = allocations.upper_bound(at);
    return next == allocations.begin() ? nullptr : &std::prev(next)->second;
}

Allocation &Memory::to_free(CUdeviceptr at) {
    auto found = allocations.find(at);
    if (found == allocations.end()) {
        fault(CUDA_ERROR_INVALID_VALUE, "free of " + describe(at));
    }
    Allocation &a = found->second;
    if (a.state == Allocation::Ending || a.state == Allocation::Ended) {
        fault(CUDA_ERROR_INVALID_VALUE, "double free of allocation " + std::to_string(a.number));
    }
    return a;
}

void Memory::require(const char *what, CUdeviceptr at, size_t bytes, int device) {
    const Allocation *a = arena().holds(at) ? before(at) : nullptr;
    bool inside = a != nullptr && a->state != Allocation::Ended && a->device == device &&
                  at - a->start <= a->size && bytes <= a->size - (at - a->start);
    if (!inside) {
        fault(CUDA_ERROR_INVALID_VALUE,
              std::string(what) + ", " + std::to_string(bytes) + " bytes at " + hex(at) + ": " + describe(at));
    }
}

void Memory::require_live(const char *what, CUdeviceptr at, size_t bytes, int device) {
    const Allocation *a = arena().holds(at) ? before(at) : nullptr;
    if (a == nullptr || a->device != device || !arena().may_touch(at, bytes)) {
        fault(CUDA_ERROR_ILLEGAL_ADDRESS,
              std::string(what) + ", " + std::to_string(bytes) + " bytes at " + hex(at) + ": " + describe(at));
    }
}

std::string Memory::describe(uintptr_t at) const {
    if (at == 0) {
        return "a null pointer";
    }
    if (!arena().holds(at)) {
        return "an address of the host";
    }
    const Allocation *a = before(at);
    if (a == nullptr) {
        return "no memory of a device";
    }
    size_t offset = at - a->start;
    std::string where = offset < a->size ? "byte " + std::to_string(offset) + " of "
                                         : std::to_string(offset - a->size) + " bytes past the end of ";
    return where + told(*a);
}

} // namespace prep

#include "host.h"

#include "arena.h"
#include "memory.h"

#include <cstring>
#include <sys/mman.h>

namespace prep {

namespace {
const size_t PAGE = 4096;
size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
} // namespace

void *HostMemory::allocate(size_t bytes) {
    void *room = mmap(nullptr, pages(bytes) + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) {
        refuse(CUDA_ERROR_OUT_OF_MEMORY);
    }
    mprotect(static_cast<char *>(room) + pages(bytes), PAGE, PROT_NONE);
    std::memset(room, 0xff, bytes);
    ranges[reinterpret_cast<uintptr_t>(room)] = {bytes, true, false};
    return room;
}

void HostMemory::add(void *at, size_t bytes) {
    if (at == nullptr || bytes == 0 || arena().holds(reinterpret_cast<uintptr_t>(at))) {
        fault(CUDA_ERROR_INVALID_VALUE, "no memory of the host");
    }
    if (pinned("registered", at, 1)) {
        fault(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "pinned already");
    }
    ranges[reinterpret_cast<uintptr_t>(at)] = {bytes, false, false};
}

size_t HostMemory::size(void *at) const {
    auto found = ranges.find(reinterpret_cast<uintptr_t>(at));
    if (found == ranges.end() || !found->second.ours) {
        fault(CUDA_ERROR_INVALID_VALUE, "free of memory that is no pinned allocation");
    }
    if (found->second.ended) {
        fault(CUDA_ERROR_INVALID_VALUE, "double free of pinned memory");
    }
    return found->second.bytes;
}

void HostMemory::end(void *at) {
    // The addresses stay taken, the memory goes.
    size_t whole = pages(size(at));
    madvise(at, whole, MADV_DONTNEED);
    mprotect(at, whole, PROT_NONE);
    ranges[reinterpret_cast<uintptr_t>(at)].ended = true;
}

void HostMemory::remove(void *at) {
    auto found = ranges.find(reinterpret_cast<uintptr_t>(at));
    if (found == ranges.end() || found->second.ours) {
        fault(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "not registered");
    }
    ranges.erase(found);
}

bool HostMemory::pinned(const char *what, const void *pointer, size_t bytes) const {
    uintptr_t at = reinterpret_cast<uintptr_t>(pointer);
    if (pointer == nullptr) {
        fault(CUDA_ERROR_INVALID_VALUE, std::string(what) + ": a null pointer");
    }
    if (arena().holds(at)) {
        fault(CUDA_ERROR_INVALID_VALUE, std::string(what) + " " + hex(at) + ": wrong direction, an address of a device");
    }
    auto next = ranges.upper_bound(at);
    if (next == ranges.begin()) {
        return false;
    }
    auto &range = *std::prev(next);
    size_t offset = at - range.first;
    if (offset >= range.second.bytes) {
        return false;
    }
    if (range.second.ended) {
        fault(CUDA_ERROR_INVALID_VALUE, std::string(what) + ": pinned memory that was freed");
    }
    if (bytes > range.second.bytes - offset) {
        fault(CUDA_ERROR_INVALID_VALUE, std::string(what) + ", " + std::to_string(bytes) + " bytes: past the end of " +
                                            std::to_string(range.second.bytes) + " pinned bytes");
    }
    return true;
}

size_t HostMemory::allocated() const {
    size_t count = 0;
    for (auto &r : ranges) {
        count += !r.second.ended;
    }
    return count;
}

} // namespace prep

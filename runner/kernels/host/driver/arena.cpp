#include "arena.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace prep {

namespace {

const size_t MOST = size_t(4) << 40, LEAST = size_t(16) << 30;
const size_t ALIGN = 4096, GAP = 64 << 10;

void *reserve(size_t bytes) {
    void *room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return room == MAP_FAILED ? nullptr : room;
}

// The whole pages inside of a range.
void give_back(uintptr_t at, size_t bytes) {
    uintptr_t first = (at + ALIGN - 1) / ALIGN * ALIGN, end = (at + bytes) / ALIGN * ALIGN;
    if (end > first) {
        madvise(reinterpret_cast<void *>(first), end - first, MADV_DONTNEED);
    }
}

} // namespace

Arena::Arena() {
    for (size_t bytes = MOST; bytes >= LEAST; bytes /= 2) {
        void *room = reserve(bytes), *marks = reserve(bytes / 8);
        if (room != nullptr && marks != nullptr) {
            base = reinterpret_cast<uintptr_t>(room);
            size = bytes;
            shadow = static_cast<unsigned char *>(marks);
            next = base + GAP;
            return;
        }
        if (room != nullptr) {
            munmap(room, bytes);
        }
    }
    std::fprintf(stderr, "stand-in: no range of addresses for the devices' memory\n");
    std::abort();
}

uintptr_t Arena::take(size_t bytes) {
    size_t whole = (bytes + ALIGN - 1) / ALIGN * ALIGN + GAP;
    if (whole < bytes || whole > base + size - next) {
        return 0;
    }
    uintptr_t at = next;
    next += whole;
    return at;
}

void Arena::open(uintptr_t at, size_t bytes) {
    unsigned char *marks = shadow + (at - base) / 8;
    std::memset(marks, 8, bytes / 8);
    if (bytes % 8 != 0) {
        marks[bytes / 8] = static_cast<unsigned char>(bytes % 8);
    }
}

void Arena::close(uintptr_t at, size_t bytes, bool for_good) {
    unsigned char *marks = shadow + (at - base) / 8;
    std::memset(marks, 0, (bytes + 7) / 8);
    if (for_good) {
        give_back(at, (bytes + ALIGN - 1) / ALIGN * ALIGN);
        give_back(reinterpret_cast<uintptr_t>(marks), bytes / 8);
    }
}

bool Arena::may_touch(uintptr_t at, size_t bytes) const {
    for (uintptr_t end = at + bytes; at < end;) {
        size_t inside = at % 8, here = end - at < 8 - inside ? end - at : 8 - inside;
        if (inside + here > shadow[(at - base) / 8]) {
            return false;
        }
        at += here;
    }
    return true;
}

Arena &arena() {
    // Outlives whatever runs at exit.
    static Arena &the = *new Arena;
    return the;
}

} // namespace prep

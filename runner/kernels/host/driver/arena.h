// The range of addresses that is the devices' memory, and which bytes of it may be touched.
//
// No address is given out twice, so that a use after the end is seen however late it comes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace prep {

struct Arena {
    uintptr_t base = 0;
    size_t size = 0;
    // For each 8 bytes how many of them, from the first on, may be touched.
    unsigned char *shadow = nullptr;

    Arena();
    bool holds(uintptr_t at) const { return at - base < size; }
    // The start of a range that nobody has had, a multiple of 256; far enough from the others that what overshoots
    // meets nothing. 0 when all are used up.
    uintptr_t take(size_t bytes);
    void open(uintptr_t at, size_t bytes);
    // Gives the pages back as well, where asked.
    void close(uintptr_t at, size_t bytes, bool for_good);
    bool may_touch(uintptr_t at, size_t bytes) const;

  private:
    uintptr_t next = 0;
};

Arena &arena();

} // namespace prep

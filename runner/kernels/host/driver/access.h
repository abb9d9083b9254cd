// What the kernels touch.
#pragma once

#include "types.h"

namespace prep {

// What a GPU would say of the fault that ended the running launch; of this thread.
extern thread_local CUresult found_code;

// What the running launch's arguments lie in, a GPU's constant bank: it may be read, not written.
void set_constant_bank(const void *at, size_t bytes);

// Whether an address is in this thread's room for shared memory.
bool in_shared_window(uintptr_t at);

} // namespace prep

// Kernels' blocks on several processors at once.
#pragma once

#include "../cuda.h"
#include "types.h"

#include <string>

namespace prep {

// What went wrong in a kernel.
struct Fault {
    CUresult code = CUDA_SUCCESS;
    std::string text;
};

// The first block's fault, where there are several.
Fault run_blocks(const Kernel &kernel, void **arguments, const Order &order, unsigned threads);

} // namespace prep

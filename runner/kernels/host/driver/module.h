// Modules, and the kernels that their names stand for.
#pragma once

#include "ptx.h"

#include <memory>

namespace prep {

struct Device;
struct Kernel;

struct Module {
    Device &device;
    Ptx ptx;
};

struct Function {
    Device &device;
    const Module *module;
    std::string name;
    Entry entry;
    // Compiled for this processor.
    const Kernel *kernel;
    // What cuFuncSetAttribute allowed.
    size_t most_dynamic;
};

// Shared memory that a block has without asking, and with.
const size_t SHARED_DEFAULT = 48 << 10;
// The least that any device from sm_80 on has, so that nothing relies on more.
const size_t SHARED_OPT_IN = 99 << 10;

} // namespace prep

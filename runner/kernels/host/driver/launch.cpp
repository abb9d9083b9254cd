// Launches: their limits, their arguments, the run of the kernel on this processor.

#include "../cuda.h"
#include "access.h"
#include "call.h"
#include "workers.h"

#include <cerrno>
#include <cstring>
#include <sys/uio.h>
#include <unistd.h>

using namespace prep;

namespace {

struct Launch {
    std::shared_ptr<const Function> function;
    dim3 grid, block;
    size_t shared;
    // The arguments' values, each where `offsets` says.
    std::vector<unsigned char> values;
    std::vector<size_t> offsets;
};

std::string told(const dim3 &d) {
    return std::to_string(d.x) + " x " + std::to_string(d.y) + " x " + std::to_string(d.z);
}

void require_limits(const Launch &l) {
    const Function &f = *l.function;
    auto refuse_it = [&](const std::string &what) { fault(CUDA_ERROR_INVALID_VALUE, "kernel " + f.name + ": " + what); };
    size_t threads = size_t(l.block.x) * l.block.y * l.block.z;
    if (threads == 0 || threads > 1024 || l.block.x > 1024 || l.block.y > 1024 || l.block.z > 64) {
        refuse_it("a block of " + told(l.block) + " threads");
    }
    if (f.entry.most_threads > 0 && threads > f.entry.most_threads) {
        refuse_it(std::to_string(threads) + " threads, compiled for " + std::to_string(f.entry.most_threads));
    }
    bool some = l.grid.x > 0 && l.grid.y > 0 && l.grid.z > 0;
    if (!some || l.grid.x > 0x7fffffffu || l.grid.y > 65535 || l.grid.z > 65535) {
        refuse_it("a grid of " + told(l.grid) + " blocks");
    }
    if (l.shared > f.most_dynamic) {
        refuse_it(std::to_string(l.shared) + " bytes of shared memory, allowed are " + std::to_string(f.most_dynamic));
    }
}

// Reads memory of the caller's that may not be there.
bool read_caller(void *to, const void *from, size_t bytes) {
    iovec here{to, bytes}, there{const_cast<void *>(from), bytes};
    ssize_t count = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    if (count < 0 && errno != EFAULT) {
        // Where the system does not allow to ask: it is there, or that is the end.
        std::memcpy(to, from, bytes);
        return true;
    }
    return count == ssize_t(bytes);
}

void place_arguments(Launch &l) {
    size_t at = 0;
    for (const Parameter &p : l.function->entry.parameters) {
        at = (at + p.align - 1) / p.align * p.align;
        l.offsets.push_back(at);
        at += p.bytes;
    }
    l.values.resize(at);
}

void read_each(Launch &l, void **parameters) {
    const Function &f = *l.function;
    for (size_t i = 0; i < l.offsets.size(); i++) {
        void *from = nullptr;
        bool there = read_caller(&from, parameters + i, sizeof from) &&
                     read_caller(&l.values[l.offsets[i]], from, f.entry.parameters[i].bytes);
        if (!there) {
            fault(CUDA_ERROR_INVALID_VALUE, "kernel " + f.name + ": no argument " + std::to_string(i) + " of " +
                                                std::to_string(l.offsets.size()));
        }
    }
}

void read_packed(Launch &l, void **extra) {
    const void *buffer = nullptr;
    size_t bytes = 0;
    for (size_t i = 0; extra[i] != nullptr; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            buffer = extra[i + 1];
        } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            bytes = *static_cast<size_t *>(extra[i + 1]);
        }
    }
    if (bytes != l.values.size() || !read_caller(l.values.data(), buffer, bytes)) {
        fault(CUDA_ERROR_INVALID_VALUE, "kernel " + l.function->name + ": arguments of " + std::to_string(bytes) +
                                            " bytes, it takes " + std::to_string(l.values.size()));
    }
}

// A pointer has to lead into memory of the device that is in use, its end included; null is for the kernel to see.
void require_pointer(const Launch &l, size_t argument, uintptr_t at) {
    Memory &memory = driver().memory;
    if (at == 0 || (arena().holds(at) && (arena().may_touch(at, 1) || arena().may_touch(at - 1, 1)))) {
        return;
    }
    fault(CUDA_ERROR_ILLEGAL_ADDRESS, "kernel " + l.function->name + ", argument " + std::to_string(argument) +
                                          " is " + hex(at) + ": " + memory.describe(at));
}

void require_pointers(const Launch &l) {
    const Kernel &k = *l.function->kernel;
    for (size_t i = 0; i < l.offsets.size(); i++) {
        const unsigned char *value = &l.values[l.offsets[i]];
        bool pointer = k.signature[i] == 'p' || k.signature[i] == 'P';
        // Of a struct nobody knows the fields: what looks like an address of a device is one.
        bool fields = k.signature[i] == 's';
        for (size_t at = 0; (pointer || fields) && at + 8 <= k.sizes[i]; at += 8) {
            uintptr_t address;
            std::memcpy(&address, value + at, sizeof address);
            if (pointer || arena().holds(address)) {
                require_pointer(l, i, address);
            }
        }
    }
}

void run(const Launch &l) {
    require_pointers(l);
    // Where each argument lies, then the arguments.
    std::vector<void *> bank(l.offsets.size() + (l.values.size() + 7) / 8);
    char *values = reinterpret_cast<char *>(bank.data() + l.offsets.size());
    for (size_t i = 0; i < l.offsets.size(); i++) {
        bank[i] = values + l.offsets[i];
    }
    if (!l.values.empty()) {
        std::memcpy(values, l.values.data(), l.values.size());
    }
    set_constant_bank(bank.data(), bank.size() * sizeof(void *));
    Order order{l.grid, l.block, l.shared, driver().settings.seed};
    Fault found = run_blocks(*l.function->kernel, bank.data(), order, driver().settings.threads);
    if (found.code != CUDA_SUCCESS) {
        fault(found.code, found.text);
    }
}

} // namespace

PREP_API cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **parameters,
                        void **extra) {
    return call("cuLaunchKernel", Needs::Context, [&] {
        auto launch = std::make_shared<Launch>();
        launch->function = driver().functions.get(handle);
        launch->grid = {grid_x, grid_y, grid_z};
        launch->block = {block_x, block_y, block_z};
        launch->shared = shared;
        if (&launch->function->device != current_device) {
            fault(CUDA_ERROR_INVALID_HANDLE, "a kernel of another device");
        }
        require_limits(*launch);
        place_arguments(*launch);
        if ((parameters != nullptr) == (extra != nullptr) && !launch->offsets.empty()) {
            fault(CUDA_ERROR_INVALID_VALUE, "kernel " + launch->function->name + ": no arguments, or two sets of them");
        }
        if (extra != nullptr) {
            read_packed(*launch, extra);
        } else {
            read_each(*launch, parameters);
        }
        auto work = [launch] {
            driver().counts.launches[launch->function->name]++;
            run(*launch);
        };
        enqueue(*stream_of(stream), {Action::Kernel, "kernel " + launch->function->name, work});
    });
}

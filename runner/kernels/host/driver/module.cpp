#include "module.h"

#include "../cuda.h"
#include "call.h"

#include <cstring>

using namespace prep;

namespace {

// The language that driver 12.4 reads.
const unsigned NEWEST_PTX = 84;

// Where the caller wants what the compiler says.
struct Log {
    char *buffer = nullptr;
    size_t room = 0;
    void **used = nullptr;

    void write(const std::string &text) {
        if (buffer != nullptr && room > 0) {
            size_t length = text.size() < room - 1 ? text.size() : room - 1;
            std::memcpy(buffer, text.data(), length);
            buffer[length] = 0;
        }
        if (used != nullptr) {
            *used = reinterpret_cast<void *>(text.size());
        }
    }
};

Log error_log(unsigned count, CUjit_option *options, void **values) {
    Log log;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) {
            log.buffer = static_cast<char *>(values[i]);
        } else if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
            log.room = reinterpret_cast<uintptr_t>(values[i]) & 0xffffffffu;
            log.used = &values[i];
        }
    }
    return log;
}

Ptx compile(const char *text) {
    if (std::memcmp(text, "\x7f" "ELF", 4) == 0) {
        fault(CUDA_ERROR_NO_BINARY_FOR_GPU, "the stand-in takes PTX, this is machine code");
    }
    Ptx ptx;
    try {
        ptx = parse_ptx(text);
    } catch (const std::string &why) {
        throw Refusal{CUDA_ERROR_INVALID_PTX, "no PTX: " + why};
    }
    if (ptx.version > NEWEST_PTX) {
        fault(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "PTX of version " + std::to_string(ptx.version));
    }
    const Settings &s = driver().settings;
    unsigned capability = current_device->ordinal < s.old ? 70 : unsigned(s.major * 10 + s.minor);
    if (ptx.target > capability) {
        fault(CUDA_ERROR_NO_BINARY_FOR_GPU, "PTX for sm_" + std::to_string(ptx.target) + ", the device is sm_" +
                                                std::to_string(capability));
    }
    return ptx;
}

std::string listed(const std::vector<size_t> &sizes) {
    std::string text;
    for (size_t s : sizes) {
        text += (text.empty() ? "" : " ") + std::to_string(s);
    }
    return text;
}

// The kernel that was compiled for this processor has to take what the PTX says.
const Kernel *compiled(const std::string &name, const Entry &entry) {
    const Kernel *kernel = find(name.c_str());
    if (kernel == nullptr) {
        fault(CUDA_ERROR_NOT_FOUND, "kernel " + name + " is in the PTX, but not among the compiled kernels");
    }
    std::vector<size_t> takes(kernel->sizes, kernel->sizes + kernel->arguments), says;
    for (const Parameter &p : entry.parameters) {
        says.push_back(p.bytes);
    }
    if (takes != says) {
        fault(CUDA_ERROR_INVALID_IMAGE, "kernel " + name + " has parameters of " + listed(says) +
                                            " bytes in the PTX, of " + listed(takes) + " in its source");
    }
    return kernel;
}

} // namespace

PREP_API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
    return call("cuModuleLoadData", Needs::Context, [&] {
        *module = nullptr;
        forbid_unsafe();
        if (image == nullptr) {
            fault(CUDA_ERROR_INVALID_VALUE, "a null pointer");
        }
        Log log = error_log(count, options, values);
        try {
            auto made = std::make_shared<Module>(Module{*current_device, compile(static_cast<const char *>(image))});
            log.write("");
            *module = static_cast<CUmodule>(driver().modules.add(made));
        } catch (const Refusal &refusal) {
            log.write(refusal.fault);
            throw;
        }
    });
}

PREP_API cuModuleLoadData(CUmodule *module, const void *image) {
    return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}

PREP_API cuModuleUnload(CUmodule handle) {
    return call("cuModuleUnload", Needs::Cleanup, [&] {
        auto module = driver().modules.remove(handle);
        driver().functions.remove_if([&](const Function &f) { return f.module == module.get(); });
    });
}

PREP_API cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
    return call("cuModuleGetFunction", Needs::Context, [&] {
        *function = nullptr;
        auto module = driver().modules.get(handle);
        auto at = module->ptx.entries.find(name);
        if (at == module->ptx.entries.end()) {
            refuse(CUDA_ERROR_NOT_FOUND);
        }
        // One handle for one kernel, as the driver has it.
        for (auto &f : driver().functions.all()) {
            if (f.second->module == module.get() && f.second->name == name) {
                *function = reinterpret_cast<CUfunction>(f.first);
                return;
            }
        }
        const Kernel *kernel = compiled(name, at->second);
        Function made{*current_device, module.get(), name, at->second, kernel, SHARED_DEFAULT - at->second.shared};
        *function = static_cast<CUfunction>(driver().functions.add(std::make_shared<Function>(made)));
    });
}

PREP_API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle) {
    return call("cuFuncGetAttribute", Needs::Context, [&] {
        auto f = driver().functions.get(handle);
        const Settings &s = driver().settings;
        switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            *value = f->entry.most_threads > 0 ? int(f->entry.most_threads) : 1024;
            return;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
            *value = int(f->entry.shared);
            return;
        case CU_FUNC_ATTRIBUTE_NUM_REGS:
            // Nobody knows without the real compiler; what a kernel of 1024 threads may have.
            *value = 64;
            return;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
            *value = int(f->module->ptx.target);
            return;
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
            *value = s.major * 10 + s.minor;
            return;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            *value = int(f->most_dynamic);
            return;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            *value = -1;
            return;
        case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
            *value = 0;
            return;
        }
        fault(CUDA_ERROR_INVALID_VALUE, "attribute " + std::to_string(attribute));
    });
}

PREP_API cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    return call("cuFuncSetAttribute", Needs::Context, [&] {
        auto f = driver().functions.get(handle);
        if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
            return;
        }
        if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
            fault(CUDA_ERROR_INVALID_VALUE, "attribute " + std::to_string(attribute));
        }
        if (value < 0 || size_t(value) + f->entry.shared > SHARED_OPT_IN) {
            fault(CUDA_ERROR_INVALID_VALUE, "kernel " + f->name + ": " + std::to_string(value) + " bytes of shared " +
                                                "memory, the device has " + std::to_string(SHARED_OPT_IN));
        }
        f->most_dynamic = size_t(value);
    });
}

PREP_API cuFuncSetCacheConfig(CUfunction handle, int) {
    return call("cuFuncSetCacheConfig", Needs::Context, [&] { driver().functions.get(handle); });
}

// By shared memory and threads; registers are not known.
PREP_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle, int threads,
                                                              size_t dynamic, unsigned) {
    return call("cuOccupancyMaxActiveBlocksPerMultiprocessor", Needs::Context, [&] {
        auto f = driver().functions.get(handle);
        if (threads <= 0) {
            fault(CUDA_ERROR_INVALID_VALUE, "no threads");
        }
        size_t shared = f->entry.shared + dynamic + 1024, by_shared = (SHARED_OPT_IN + 1024) / shared;
        size_t by_threads = size_t(1536 / threads), least = by_shared < by_threads ? by_shared : by_threads;
        *blocks = threads > 1024 || dynamic > f->most_dynamic ? 0 : int(least < 16 ? least : 16);
    });
}

PREP_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int threads, size_t dynamic) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads, dynamic, 0);
}

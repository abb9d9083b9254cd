// Functions that give memory out and take it back.

#include "call.h"

using namespace prep;

namespace {

void require_size(size_t bytes) {
    if (bytes == 0) {
        fault(CUDA_ERROR_INVALID_VALUE, "no bytes");
    }
}

// What pending frees give back counts too.
Allocation &allocate(size_t bytes, bool ordered) {
    Memory &memory = driver().memory;
    int device = current_device->ordinal;
    if (bytes > memory.free_bytes(device) && driver().captures.empty()) {
        complete_all(*current_device);
    }
    return memory.allocate(device, bytes, ordered);
}

} // namespace

PREP_API cuMemGetInfo_v2(size_t *free, size_t *total) {
    return call("cuMemGetInfo", Needs::Context, [&] {
        *free = driver().memory.free_bytes(current_device->ordinal);
        *total = driver().memory.capacity;
    });
}

PREP_API cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) {
    return call("cuMemAlloc", Needs::Context, [&] {
        require_size(bytes);
        forbid_unsafe();
        Allocation &a = allocate(bytes, false);
        driver().memory.begin(a);
        *at = a.start;
    });
}

PREP_API cuMemFree_v2(CUdeviceptr at) {
    return call("cuMemFree", Needs::Cleanup, [&] {
        if (at == 0) {
            return;
        }
        Allocation &a = driver().memory.to_free(at);
        if (a.device != current_device->ordinal) {
            fault(CUDA_ERROR_INVALID_VALUE, "free of memory of another device");
        }
        forbid_unsafe();
        // It waits for the device.
        if (current_device->broken == CUDA_SUCCESS) {
            complete_all(*current_device);
        }
        driver().memory.end(a);
    });
}

PREP_API cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream handle) {
    return call("cuMemAllocAsync", Needs::Context, [&] {
        require_size(bytes);
        auto stream = stream_of(handle);
        if (stream->capture != nullptr) {
            enqueue(*stream, {Action::Allocate, "cuMemAllocAsync", [] {}});
        }
        Allocation &a = allocate(bytes, true);
        *at = a.start;
        enqueue(*stream, {Action::Allocate, "cuMemAllocAsync", [&a] { driver().memory.begin(a); }});
    });
}

PREP_API cuMemFreeAsync(CUdeviceptr at, CUstream handle) {
    return call("cuMemFreeAsync", Needs::Cleanup, [&] {
        Allocation &a = driver().memory.to_free(at);
        auto stream = stream_of(handle);
        if (!a.ordered) {
            fault(CUDA_ERROR_INVALID_VALUE, "memory that cuMemAllocAsync did not give out");
        }
        if (current_device->broken != CUDA_SUCCESS) {
            driver().memory.end(a);
            return;
        }
        enqueue(*stream, {Action::Free, "cuMemFreeAsync", [&a] { driver().memory.end(a); }});
        a.state = Allocation::Ending;
    });
}

PREP_API cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
    return call("cuMemHostAlloc", Needs::Context, [&] {
        require_size(bytes);
        if (flags > 7) {
            fault(CUDA_ERROR_INVALID_VALUE, "flags " + std::to_string(flags));
        }
        forbid_unsafe();
        *at = driver().host.allocate(bytes);
    });
}

PREP_API cuMemAllocHost_v2(void **at, size_t bytes) { return cuMemHostAlloc(at, bytes, 0); }

PREP_API cuMemFreeHost(void *at) {
    return call("cuMemFreeHost", Needs::Cleanup, [&] {
        HostRange all{static_cast<char *>(at), driver().host.size(at), false};
        bool pending = pending_on(*current_device, all, false);
        if (pending) {
            complete_all(*current_device);
        }
        driver().host.end(at);
        if (pending) {
            fault(CUDA_SUCCESS, "pinned memory is freed while a copy of it is pending");
        }
    });
}

PREP_API cuMemHostRegister_v2(void *at, size_t bytes, unsigned) {
    return call("cuMemHostRegister", Needs::Context, [&] {
        forbid_unsafe();
        driver().host.add(at, bytes);
    });
}

PREP_API cuMemHostUnregister(void *at) {
    return call("cuMemHostUnregister", Needs::Cleanup, [&] { driver().host.remove(at); });
}

PREP_API cuMemHostGetFlags(unsigned *flags, void *at) {
    return call("cuMemHostGetFlags", Needs::Context, [&] {
        if (!driver().host.pinned("asked for", at, 1)) {
            fault(CUDA_ERROR_INVALID_VALUE, "not pinned");
        }
        *flags = 0;
    });
}

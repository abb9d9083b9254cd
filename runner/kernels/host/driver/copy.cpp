// Copies and fills.

#include "call.h"

#include <cstring>

using namespace prep;

namespace {

char *at(CUdeviceptr p) { return reinterpret_cast<char *>(p); }

struct Copy {
    CUdeviceptr device;
    char *host;
    size_t bytes;
};

Action to_device(const Copy &c, std::shared_ptr<std::vector<char>> staged) {
    int device = current_device->ordinal;
    auto run = [c, staged, device] {
        driver().memory.require_live("destination", c.device, c.bytes, device);
        std::memcpy(at(c.device), staged == nullptr ? c.host : staged->data(), c.bytes);
        driver().counts.to_device += c.bytes;
    };
    Action action{Action::Copy, "copy to the device", run};
    if (staged == nullptr) {
        action.host.push_back({c.host, c.bytes, false});
    }
    return action;
}

Action to_host(const Copy &c) {
    int device = current_device->ordinal;
    auto run = [c, device] {
        driver().memory.require_live("source", c.device, c.bytes, device);
        std::memcpy(c.host, at(c.device), c.bytes);
        driver().counts.to_host += c.bytes;
    };
    return {Action::Copy, "copy to the host", run, {{c.host, c.bytes, true}}};
}

std::shared_ptr<std::vector<char>> staged(const Copy &c) {
    return std::make_shared<std::vector<char>>(c.host, c.host + c.bytes);
}

// Pinned memory is read when the stream comes to it. Other memory is read now, so the caller may change it at once,
// but has not arrived yet.
void copy_to_device(const Copy &c, Stream &stream, bool wait) {
    if (c.bytes == 0) {
        return;
    }
    driver().memory.require("destination", c.device, c.bytes, current_device->ordinal);
    bool pinned = driver().host.pinned("source", c.host, c.bytes);
    if (wait) {
        forbid_waiting(stream);
        complete(end_of(stream));
    }
    if (!pinned) {
        forbid_pageable(stream);
    }
    enqueue(stream, to_device(c, pinned ? nullptr : staged(c)));
    if (wait && pinned) {
        complete(end_of(stream));
    }
}

// Into memory that is not pinned the driver waits for.
void copy_to_host(const Copy &c, Stream &stream, bool wait) {
    if (c.bytes == 0) {
        return;
    }
    driver().memory.require("source", c.device, c.bytes, current_device->ordinal);
    bool pinned = driver().host.pinned("destination", c.host, c.bytes);
    if (wait) {
        forbid_waiting(stream);
    }
    if (!pinned) {
        forbid_pageable(stream);
    }
    enqueue(stream, to_host(c));
    if (wait || !pinned) {
        complete(end_of(stream));
    }
}

void copy_on_device(CUdeviceptr to, CUdeviceptr from, size_t bytes, Stream &stream) {
    if (bytes == 0) {
        return;
    }
    int device = current_device->ordinal;
    driver().memory.require("destination", to, bytes, device);
    driver().memory.require("source", from, bytes, device);
    if (to < from + bytes && from < to + bytes) {
        fault(CUDA_ERROR_INVALID_VALUE, "source and destination overlap");
    }
    auto run = [=] {
        driver().memory.require_live("destination", to, bytes, device);
        driver().memory.require_live("source", from, bytes, device);
        std::memcpy(at(to), at(from), bytes);
    };
    enqueue(stream, {Action::Copy, "copy on the device", run});
}

template <class T> void fill(CUdeviceptr to, T value, size_t count, Stream &stream) {
    if (count == 0) {
        return;
    }
    int device = current_device->ordinal;
    size_t bytes = count * sizeof(T);
    if (to % sizeof(T) != 0) {
        fault(CUDA_ERROR_INVALID_VALUE, hex(to) + " is misaligned, not a multiple of " + std::to_string(sizeof(T)));
    }
    driver().memory.require("destination", to, bytes, device);
    auto run = [=] {
        driver().memory.require_live("destination", to, bytes, device);
        for (size_t i = 0; i < count; i++) {
            std::memcpy(at(to) + i * sizeof(T), &value, sizeof(T));
        }
    };
    enqueue(stream, {Action::Fill, "fill", run});
}

char *host(const void *p) { return const_cast<char *>(static_cast<const char *>(p)); }

} // namespace

PREP_API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return call("cuMemcpyHtoD", Needs::Context,
                [&] { copy_to_device({to, host(from), bytes}, *current_device->legacy, true); });
}
PREP_API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return call("cuMemcpyHtoDAsync", Needs::Context,
                [&] { copy_to_device({to, host(from), bytes}, *stream_of(stream), false); });
}
PREP_API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return call("cuMemcpyDtoH", Needs::Context,
                [&] { copy_to_host({from, host(to), bytes}, *current_device->legacy, true); });
}
PREP_API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return call("cuMemcpyDtoHAsync", Needs::Context,
                [&] { copy_to_host({from, host(to), bytes}, *stream_of(stream), false); });
}
PREP_API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return call("cuMemcpyDtoD", Needs::Context, [&] { copy_on_device(to, from, bytes, *current_device->legacy); });
}
PREP_API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return call("cuMemcpyDtoDAsync", Needs::Context, [&] { copy_on_device(to, from, bytes, *stream_of(stream)); });
}

PREP_API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return call("cuMemsetD8", Needs::Context, [&] { fill(to, value, count, *current_device->legacy); });
}
PREP_API cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    return call("cuMemsetD32", Needs::Context, [&] { fill(to, value, count, *current_device->legacy); });
}
PREP_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return call("cuMemsetD8Async", Needs::Context, [&] { fill(to, value, count, *stream_of(stream)); });
}
PREP_API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return call("cuMemsetD32Async", Needs::Context, [&] { fill(to, value, count, *stream_of(stream)); });
}

// Contexts: the primary one of each device, and which is current on a thread.

#include "call.h"

using namespace prep;

namespace {

// A context's handle is its device's number and a mark, no address.
const uintptr_t MARK = 0x0cdc000000000000;

CUcontext handle_of(const Device &device) { return reinterpret_cast<CUcontext>(MARK + uintptr_t(device.ordinal)); }

Device &device_at(CUdevice ordinal) {
    if (ordinal < 0 || ordinal >= driver().settings.devices) {
        fault(CUDA_ERROR_INVALID_DEVICE, "device " + std::to_string(ordinal));
    }
    return driver().devices[size_t(ordinal)];
}

} // namespace

PREP_API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    return call("cuDevicePrimaryCtxRetain", Needs::Init, [&] {
        Device &device = device_at(ordinal);
        if (device.retained++ == 0) {
            device.legacy = std::make_shared<Stream>(device, true);
            device.streams.push_back(device.legacy);
        }
        *context = handle_of(device);
    });
}

PREP_API cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    return call("cuDevicePrimaryCtxRelease", Needs::Init, [&] {
        Device &device = device_at(ordinal);
        if (device.retained == 0) {
            fault(CUDA_ERROR_INVALID_CONTEXT, "released more often than retained");
        }
        if (device.retained == 1) {
            driver().reset(device);
        }
        device.retained--;
    });
}

PREP_API cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active) {
    return call("cuDevicePrimaryCtxGetState", Needs::Init, [&] {
        *flags = 0;
        *active = device_at(ordinal).retained > 0;
    });
}

PREP_API cuCtxSetCurrent(CUcontext context) {
    return call("cuCtxSetCurrent", Needs::Init, [&] {
        uintptr_t number = reinterpret_cast<uintptr_t>(context) - MARK;
        if (context == nullptr) {
            current_device = nullptr;
        } else if (number < driver().devices.size() && driver().devices[number].retained > 0) {
            current_device = &driver().devices[number];
        } else {
            fault(CUDA_ERROR_INVALID_CONTEXT, "no context");
        }
    });
}

PREP_API cuCtxGetCurrent(CUcontext *context) {
    return call("cuCtxGetCurrent", Needs::Init, [&] {
        bool there = current_device != nullptr && current_device->retained > 0;
        *context = there ? handle_of(*current_device) : nullptr;
    });
}

PREP_API cuCtxGetDevice(CUdevice *device) {
    return call("cuCtxGetDevice", Needs::Context, [&] { *device = current_device->ordinal; });
}

PREP_API cuCtxSynchronize() {
    return call("cuCtxSynchronize", Needs::Context, [&] {
        forbid_waiting_for_all();
        complete_all(*current_device);
    });
}

// How the host waits is all one here.
PREP_API cuCtxSetFlags(unsigned) {
    return call("cuCtxSetFlags", Needs::Context, [] {});
}

PREP_API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    return call("cuCtxGetStreamPriorityRange", Needs::Context, [&] { *least = *greatest = 0; });
}

// Devices: how many there are and what they can do.

#include "call.h"

#include <cstdio>
#include <cstring>

using namespace prep;

namespace {

void require_device(CUdevice device) {
    if (device < 0 || device >= driver().settings.devices) {
        fault(CUDA_ERROR_INVALID_DEVICE, "device " + std::to_string(device));
    }
}

// Of a card with 128 multiprocessors and 384 lines to its memory; by the number that cuda.h gives the attribute. What
// the card does not have is 0.
int attribute(int number) {
    const Settings &s = driver().settings;
    switch (number) {
    case 1:  // threads of a block
    case 2:  // and its width
    case 3:  // and height
        return 1024;
    case 4: // and depth
        return 64;
    case 5: // blocks of a grid
        return 0x7fffffff;
    case 6:
    case 7:
        return 65535;
    case 8: // shared memory of a block
        return int(SHARED_DEFAULT);
    case 9: // constant memory
        return 65536;
    case 10: // threads of a warp
        return 32;
    case 12: // registers of a block
    case 82: // of a multiprocessor
        return 65536;
    case 13: // kHz
        return 2520000;
    case 14: // alignment of textures
        return 512;
    case 15: // copies beside kernels
        return 1;
    case 16: // multiprocessors
        return 128;
    case 19: // host memory may be mapped
        return 1;
    case 31: // kernels beside each other
        return 1;
    case 36: // kHz of memory
        return 10501000;
    case 37: // lines to it
        return 384;
    case 38: // second cache
        return 72 << 20;
    case 39: // threads of a multiprocessor
        return 1536;
    case 40: // engines for copies
        return 2;
    case 41: // one range of addresses with the host
        return 1;
    case 75:
        return s.major;
    case 76:
        return s.minor;
    case 78: // priorities of streams
    case 79: // cached in the first cache
    case 80:
        return 1;
    case 81: // shared memory of a multiprocessor
        return int(SHARED_OPT_IN + 1024);
    case 90: // preemption
    case 95: // cooperative launches
        return 1;
    case 97: // shared memory of a block that asks
        return int(SHARED_OPT_IN);
    case 99: // host memory may be registered
        return 1;
    case 106: // blocks of a multiprocessor
        return 24;
    case 111: // shared memory that the system takes of a block
        return 1024;
    case 115: // cuMemAllocAsync
        return 1;
    default:
        return 0;
    }
}

} // namespace

PREP_API cuInit(unsigned flags) {
    return call("cuInit", Needs::Nothing, [&] {
        if (flags != 0) {
            fault(CUDA_ERROR_INVALID_VALUE, "flags");
        }
        if (driver().settings.devices == 0) {
            refuse(CUDA_ERROR_NO_DEVICE);
        }
        driver().initialised = true;
    });
}

PREP_API cuDriverGetVersion(int *version) {
    return call("cuDriverGetVersion", Needs::Nothing, [&] { *version = driver().settings.version; });
}

PREP_API cuGetErrorName(CUresult result, const char **name) {
    *name = name_of(result);
    return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

PREP_API cuGetErrorString(CUresult result, const char **text) {
    *text = text_of(result);
    return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

PREP_API cuDeviceGetCount(int *count) {
    return call("cuDeviceGetCount", Needs::Init, [&] { *count = driver().settings.devices; });
}

PREP_API cuDeviceGet(CUdevice *device, int ordinal) {
    return call("cuDeviceGet", Needs::Init, [&] {
        // Asking how many there are in this way is no mistake.
        if (ordinal < 0 || ordinal >= driver().settings.devices) {
            refuse(CUDA_ERROR_INVALID_DEVICE);
        }
        *device = ordinal;
    });
}

PREP_API cuDeviceGetName(char *name, int length, CUdevice device) {
    return call("cuDeviceGetName", Needs::Init, [&] {
        require_device(device);
        if (length > 0) {
            std::snprintf(name, size_t(length), "stand-in %d", device);
        }
    });
}

PREP_API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    return call("cuDeviceGetUuid", Needs::Init, [&] {
        require_device(device);
        std::memset(uuid, 0, sizeof *uuid);
        uuid->bytes[15] = static_cast<unsigned char>(device + 1);
    });
}

PREP_API cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

PREP_API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    return call("cuDeviceTotalMem", Needs::Init, [&] {
        require_device(device);
        *bytes = driver().memory.capacity;
    });
}

PREP_API cuDeviceGetAttribute(int *value, int number, CUdevice device) {
    return call("cuDeviceGetAttribute", Needs::Init, [&] {
        require_device(device);
        if (number <= 0 || number >= 140) {
            fault(CUDA_ERROR_INVALID_VALUE, "attribute " + std::to_string(number));
        }
        bool old = device < driver().settings.old;
        *value = old && number == 75 ? 7 : old && number == 76 ? 0 : attribute(number);
    });
}

// The part of libcuda's C interface that the stand-in has: types and the values of its constants.
#pragma once

#include <cstddef>
#include <cstdint>

// Value, name, what the driver says.
#define PREP_RESULTS(X)                                                                                                \
    X(0, CUDA_SUCCESS, "no error")                                                                                     \
    X(1, CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                                 \
    X(2, CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                                    \
    X(3, CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                                           \
    X(100, CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                                 \
    X(101, CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                                        \
    X(200, CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                                 \
    X(201, CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                                       \
    X(209, CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device")                   \
    X(218, CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed")                                                     \
    X(222, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain")          \
    X(400, CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                                       \
    X(401, CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")                         \
    X(500, CUDA_ERROR_NOT_FOUND, "named symbol not found")                                                             \
    X(600, CUDA_ERROR_NOT_READY, "device not ready")                                                                   \
    X(700, CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                                     \
    X(701, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")                              \
    X(712, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped")   \
    X(713, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region")         \
    X(716, CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")                                                        \
    X(719, CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                                     \
    X(801, CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                                        \
    X(900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")                  \
    X(901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture")           \
    X(902, CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences")         \
    X(903, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began")                \
    X(904, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                                   \
    X(905, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream")             \
    X(906, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing stream")  \
    X(907, CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream")       \
    X(908, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture from another thread")  \
    X(999, CUDA_ERROR_UNKNOWN, "unknown error")

enum CUresult : int {
#define X(value, name, text) name = value,
    PREP_RESULTS(X)
#undef X
};

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

struct CUuuid {
    unsigned char bytes[16];
};

enum { CU_STREAM_NON_BLOCKING = 1 };
#define CU_STREAM_LEGACY (reinterpret_cast<CUstream>(1))
#define CU_STREAM_PER_THREAD (reinterpret_cast<CUstream>(2))

enum { CU_EVENT_DISABLE_TIMING = 2 };

enum CUstreamCaptureMode : int {
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};
enum CUstreamCaptureStatus : int {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};

enum CUfunction_attribute : int {
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
    CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2,
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
    CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
    CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
    CU_FUNC_ATTRIBUTE_CACHE_MODE_CA = 7,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
};

enum CUjit_option : int {
    CU_JIT_INFO_LOG_BUFFER = 3,
    CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
};

// What `extra` of a launch names.
#define CU_LAUNCH_PARAM_BUFFER_POINTER (reinterpret_cast<void *>(1))
#define CU_LAUNCH_PARAM_BUFFER_SIZE (reinterpret_cast<void *>(2))

// What is called from outside; all else is hidden.
#define PREP_API extern "C" __attribute__((visibility("default"))) CUresult

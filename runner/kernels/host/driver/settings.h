// What the environment asks for.
#pragma once

#include "types.h"

#include <string>

namespace prep {

struct Settings {
    // PREP_STANDIN_MEMORY: bytes of each device.
    size_t memory = size_t(4) << 30;
    // PREP_STANDIN_SEED: order of threads, blocks and streams. 0 as late as possible, 1 as early as possible, others
    // in some order.
    unsigned seed = 0;
    // PREP_STANDIN_DEVICES.
    int devices = 1;
    // PREP_STANDIN_CAPABILITY, as "8.9".
    int major = 8, minor = 9;
    // PREP_STANDIN_OLD: so many devices, the first ones, are sm_70.
    int old = 0;
    // PREP_STANDIN_THREADS: how many blocks run at once.
    unsigned threads = 1;
    // PREP_STANDIN_FAIL, as "NAME:N" or "NAME:N:CODE": the N-th call of this function fails. Without a code it is out
    // of memory where the name has `Alloc`, an unknown error otherwise.
    std::string fail_name;
    unsigned long fail_at = 0;
    // PREP_STANDIN_FAIL_COUNT: so many calls fail, one after the other.
    unsigned long fail_count = 1;
    // PREP_STANDIN_VERSION: of CUDA, as cuDriverGetVersion has it.
    int version = 12040;
    CUresult fail_with = CUDA_ERROR_UNKNOWN;
    // PREP_STANDIN_REPORT: a file that the report is appended to.
    std::string report;

    Settings();
};

} // namespace prep

// A stand-in for NVIDIA's driver, for the tests: libcuda's C interface over kernels that were compiled for this
// processor. A program that loads it by name runs unchanged.
//
//   program ── call ──▶ copy, launch, graph, allocate, ... ──▶ stream   what is to be done, in order
//                           │ refusal: error code, report          │ when somebody waits
//                           ▼                                      ▼
//                       memory, host   what may be touched     workers ──▶ fibers ──▶ kernel ──▶ access
//
// Here is the state: devices, and what was made on them.
#pragma once

#include "capture.h"
#include "handles.h"
#include "host.h"
#include "memory.h"
#include "module.h"
#include "report.h"
#include "settings.h"

#include <mutex>

namespace prep {

struct Device {
    int ordinal;
    unsigned retained = 0;
    // What every call says once a kernel or a copy has touched what it may not.
    CUresult broken = CUDA_SUCCESS;
    std::shared_ptr<Stream> legacy;
    std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;
    // In the order of their making; destroyed ones as long as there is work in them.
    std::vector<std::shared_ptr<Stream>> streams;
};

struct Event {
    Device &device;
    bool timed;
    // What it marks: a place, or nodes of a recording.
    Mark place;
    std::weak_ptr<Capture> capture;
    std::set<size_t> nodes;
};

struct GraphExec {
    Device &device;
    std::vector<Node> nodes;
};

struct Driver {
    std::mutex mutex;
    Settings settings;
    bool initialised = false;
    std::vector<Device> devices;
    Memory memory;
    HostMemory host;
    Handles<Stream> streams{"streams"};
    Handles<Event> events{"events"};
    Handles<Module> modules{"modules"};
    Handles<Function> functions{"functions"};
    Handles<Graph> graphs{"graphs"};
    Handles<GraphExec> execs{"executable graphs"};
    std::vector<std::shared_ptr<Capture>> captures;
    Counts counts;
    std::map<std::string, unsigned long> calls;

    Driver();
    uint64_t random();
    // Ends all that is on the device, and notes what should have been ended before.
    void reset(Device &device);
    // Notes what is still on the device.
    void count_leaks(const Device &device);

  private:
    uint64_t state;
};

Driver &driver();
// Of the calling thread's context.
extern thread_local Device *current_device;

} // namespace prep

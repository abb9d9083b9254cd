#include "driver.h"

#include <algorithm>

namespace prep {

thread_local Device *current_device = nullptr;

uintptr_t new_handle() {
    static uintptr_t next = 0x0cda000000000000;
    return next += 16;
}

Driver::Driver() : memory(settings.memory, settings.devices), state(settings.seed * 0x9e3779b97f4a7c15u + 1) {
    // Streams keep references to them.
    devices.reserve(size_t(settings.devices));
    for (int i = 0; i < settings.devices; i++) {
        devices.push_back({});
        devices.back().ordinal = i;
    }
}

uint64_t Driver::random() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

void Driver::count_leaks(const Device &device) {
    auto note = [&](const char *kind, size_t count) {
        if (count > 0) {
            counts.leaks[kind] += count;
        }
    };
    auto count = [&](const auto &handles) {
        auto here = [&](const auto &entry) { return &entry.second->device == &device; };
        note(handles.plural, size_t(std::count_if(handles.all().begin(), handles.all().end(), here)));
    };
    for (auto &a : memory.all()) {
        bool there = a.second.state == Allocation::Live || a.second.state == Allocation::Promised;
        if (there && a.second.device == device.ordinal) {
            note("allocations", 1);
            counts.leaked_bytes += a.second.size;
        }
    }
    count(streams);
    count(events);
    count(modules);
    count(graphs);
    count(execs);
    for (auto &s : device.streams) {
        for (const Pending &p : s->queue) {
            counts.unwaited += p.action->kind < Action::Empty;
        }
    }
}

void Driver::reset(Device &device) {
    try {
        complete_all(device);
    } catch (const Refusal &) {
        // Is reported, and what is there ends all the same.
    }
    count_leaks(device);
    memory.end_all(device.ordinal);
    auto here = [&](const auto &object) { return &object.device == &device; };
    streams.remove_if(here);
    events.remove_if(here);
    modules.remove_if(here);
    functions.remove_if(here);
    graphs.remove_if(here);
    execs.remove_if(here);
    for (auto at = captures.begin(); at != captures.end();) {
        at = &(*at)->origin->device == &device ? captures.erase(at) : std::next(at);
    }
    device.streams.clear();
    device.per_thread.clear();
    device.legacy = nullptr;
    device.broken = CUDA_SUCCESS;
}

Driver &driver() {
    // Outlives whatever runs at exit.
    static Driver &the = *new Driver;
    return the;
}

namespace {

__attribute__((destructor)) void at_exit() {
    Driver &d = driver();
    // A thread that is still in a call is not waited for.
    if (d.initialised && d.mutex.try_lock()) {
        for (const Device &device : d.devices) {
            d.count_leaks(device);
            if (device.retained > 0) {
                d.counts.leaks["contexts"] += device.retained;
            }
        }
        if (d.host.allocated() > 0) {
            d.counts.leaks["pinned allocations"] = d.host.allocated();
        }
        d.counts.peak = d.memory.peak();
        report_summary(d.counts);
        d.mutex.unlock();
    }
}

} // namespace

} // namespace prep

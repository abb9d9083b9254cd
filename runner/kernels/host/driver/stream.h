// Streams: what is to be done, in order, when somebody waits for it.
//
// Nothing runs by itself. A host that forgets to wait finds what was there before; how far other streams are when one
// is waited for depends on the seed.
#pragma once

#include "types.h"

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace prep {

struct Device;
struct Stream;
struct Capture;

// Pinned memory that is read or written.
struct HostRange {
    char *at;
    size_t bytes;
    bool written;
};

// A kernel, a copy, a fill: what a stream does and a graph records.
struct Action {
    enum Kind { Kernel = 0, Copy = 1, Fill = 2, Graph = 4, Empty = 5, Allocate = 10, Free = 11 } kind;
    std::string what;
    std::function<void()> run;
    std::vector<HostRange> host = {};
};

// A place in a stream: reached when all before it is done.
struct Marker {
    Stream *stream;
    bool done = false;
    std::chrono::steady_clock::time_point at;
};
typedef std::shared_ptr<Marker> Mark;

struct Pending {
    std::shared_ptr<const Action> action;
    std::vector<Mark> after;
    Mark end;
    // Of the pinned memory that it reads, which the host leaves alone until then; 0 where others write there before.
    uint64_t sum;
};

struct Stream {
    Device &device;
    // Whether it waits for the legacy stream, and that for it.
    bool blocking;
    bool destroyed = false;
    std::deque<Pending> queue;
    Mark last;
    // What its calls are recorded in, where they are.
    std::shared_ptr<Capture> capture;

    Stream(Device &device, bool blocking) : device(device), blocking(blocking) {}
};

std::shared_ptr<Stream> new_stream(bool blocking);
// The stream of a handle, the legacy one and that of the thread as well.
std::shared_ptr<Stream> stream_of(CUstream handle);
// Adds to the stream, or to what is recorded of it.
void enqueue(Stream &stream, Action action);
// The same past any recording; done after those places too.
void push(Stream &stream, std::shared_ptr<const Action> action, std::vector<Mark> after);
// The end of what is in the stream now.
Mark end_of(Stream &stream);

// Runs what has to be done before this place is reached, and what else the seed lets run.
void complete(const Mark &place);
void complete_all(Device &device);
// What the device comes to while the host asks: one step. Whether the place is reached.
bool poll(const Mark &place);
// Whether something pending touches this memory of the host; or writes there.
bool pending_on(Device &device, const HostRange &range, bool writes);

} // namespace prep

// Recording what a stream is told into a graph.
#pragma once

#include "stream.h"

#include <map>
#include <set>
#include <thread>

namespace prep {

struct Node {
    std::shared_ptr<const Action> action;
    // Numbers of those that come before.
    std::set<size_t> after;
};

struct Graph {
    Device &device;
    std::vector<Node> nodes;
};

struct Capture {
    Stream *origin;
    CUstreamCaptureMode mode;
    std::thread::id thread;
    bool valid = true;
    std::shared_ptr<Graph> graph;
    // For each stream that takes part: the nodes that its next one comes after.
    std::map<Stream *, std::set<size_t>> ends;
};

// Adds to what is recorded of the stream.
void record(Stream &stream, std::shared_ptr<const Action> action);
// Waiting for a stream that is recorded, or asking how far it is: fails, and ends the recording.
void forbid_waiting(Stream &stream);
// The same for the whole device.
void forbid_waiting_for_all();
// What may wait for the device, as an allocation does: fails during a recording that is not relaxed.
void forbid_unsafe();
// Work in the legacy stream, which would wait for a stream that is recorded.
void forbid_legacy();
// Memory that is not pinned, in a stream that is recorded.
void forbid_pageable(Stream &stream);

} // namespace prep

#include "capture.h"

#include "call.h"

namespace prep {

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

[[noreturn]] void spoil(Capture &capture, CUresult code, const std::string &why) {
    capture.valid = false;
    fault(code, why + " while a stream is recorded");
}

// Whether the capture forbids this thread what may wait for the device.
bool forbids_unsafe(const Capture &c) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || c.mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return false;
    }
    bool mine = c.thread == std::this_thread::get_id();
    bool global = c.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    return mine || global;
}

// Streams that are joined to the origin by its last nodes.
std::set<size_t> ancestors(const Graph &graph, const std::set<size_t> &of) {
    std::set<size_t> all;
    std::vector<size_t> open(of.begin(), of.end());
    while (!open.empty()) {
        size_t n = open.back();
        open.pop_back();
        if (all.insert(n).second) {
            open.insert(open.end(), graph.nodes[n].after.begin(), graph.nodes[n].after.end());
        }
    }
    return all;
}

bool all_joined(const Capture &c) {
    std::set<size_t> joined = ancestors(*c.graph, c.ends.at(c.origin));
    for (auto &end : c.ends) {
        for (size_t n : end.second) {
            if (joined.count(n) == 0) {
                return false;
            }
        }
    }
    return true;
}

// Its streams are as they were before.
void end_capture(Capture &capture) {
    auto &all = driver().captures;
    for (auto &end : capture.ends) {
        end.first->capture = nullptr;
    }
    for (auto at = all.begin(); at != all.end(); ++at) {
        if (at->get() == &capture) {
            all.erase(at);
            return;
        }
    }
}

} // namespace

void record(Stream &stream, std::shared_ptr<const Action> action) {
    Capture &c = *stream.capture;
    if (!c.valid) {
        refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    if (action->kind == Action::Allocate || action->kind == Action::Free) {
        spoil(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "memory of a graph's own, which the stand-in does not have,");
    }
    c.graph->nodes.push_back({std::move(action), c.ends[&stream]});
    c.ends[&stream] = {c.graph->nodes.size() - 1};
}

void forbid_waiting(Stream &stream) {
    if (stream.capture != nullptr) {
        spoil(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "waiting for it");
    }
    if (&stream == stream.device.legacy.get()) {
        forbid_legacy();
    }
}

void forbid_waiting_for_all() {
    for (auto &c : driver().captures) {
        if (&c->origin->device == current_device) {
            spoil(*c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "waiting for the device");
        }
    }
}

void forbid_unsafe() {
    for (auto &c : driver().captures) {
        if (forbids_unsafe(*c)) {
            spoil(*c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a call that may wait for the device");
        }
    }
}

void forbid_legacy() {
    for (auto &c : driver().captures) {
        for (auto &end : c->ends) {
            if (end.first->blocking && &end.first->device == current_device) {
                spoil(*c, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "work in the legacy stream");
            }
        }
    }
}

void forbid_pageable(Stream &stream) {
    if (stream.capture != nullptr) {
        spoil(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a copy of memory that is not pinned");
    }
}

} // namespace prep

using namespace prep;

PREP_API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    return call("cuStreamBeginCapture", Needs::Context, [&] {
        auto stream = stream_of(handle);
        if (stream == current_device->legacy) {
            fault(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot be recorded");
        }
        if (stream->capture != nullptr) {
            fault(CUDA_ERROR_ILLEGAL_STATE, "the stream is recorded already");
        }
        if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
            fault(CUDA_ERROR_INVALID_VALUE, "no such mode");
        }
        auto graph = std::make_shared<Graph>(Graph{*current_device, {}});
        auto capture = std::make_shared<Capture>();
        *capture = {stream.get(), mode, std::this_thread::get_id(), true, graph, {{stream.get(), {}}}};
        stream->capture = capture;
        driver().captures.push_back(capture);
    });
}

PREP_API cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    return call("cuStreamEndCapture", Needs::Context, [&] {
        *graph = nullptr;
        auto stream = stream_of(handle);
        auto capture = stream->capture;
        if (capture == nullptr) {
            fault(CUDA_ERROR_ILLEGAL_STATE, "the stream is not recorded");
        }
        if (capture->origin != stream.get()) {
            spoil(*capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "ended in another stream than it began in");
        }
        bool other_thread = capture->thread != std::this_thread::get_id();
        if (other_thread && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
            fault(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "ended by another thread than began it");
        }
        end_capture(*capture);
        if (!capture->valid) {
            refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if (!all_joined(*capture)) {
            fault(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "work of another stream is not joined to it");
        }
        *graph = static_cast<CUgraph>(driver().graphs.add(capture->graph));
    });
}

PREP_API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    return call("cuStreamIsCapturing", Needs::Context, [&] {
        auto stream = stream_of(handle);
        if (stream == current_device->legacy) {
            forbid_legacy();
        }
        *status = stream->capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
                  : stream->capture->valid   ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                             : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    });
}

PREP_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    return call("cuThreadExchangeStreamCaptureMode", Needs::Init, [&] { std::swap(*mode, thread_mode); });
}

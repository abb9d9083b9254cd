// Streams' and events' functions.

#include "call.h"
#include "capture.h"

using namespace prep;

namespace {

std::shared_ptr<Event> event_of(CUevent handle) { return driver().events.get(handle); }

void forbid_recorded(const Event &event) {
    if (event.capture.lock() != nullptr) {
        event.capture.lock()->valid = false;
        fault(CUDA_ERROR_CAPTURED_EVENT, "the event was recorded in a stream that is recorded");
    }
}

// The waiting stream goes on after the recorded event's nodes, and is recorded too.
void join(Stream &stream, const Event &event, const std::shared_ptr<Capture> &capture) {
    if (stream.capture != nullptr && stream.capture != capture) {
        stream.capture->valid = capture->valid = false;
        fault(CUDA_ERROR_STREAM_CAPTURE_MERGE, "the event belongs to another recording");
    }
    stream.capture = capture;
    capture->ends[&stream].insert(event.nodes.begin(), event.nodes.end());
}

} // namespace

PREP_API cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int) {
    return call("cuStreamCreate", Needs::Context, [&] {
        if (flags > CU_STREAM_NON_BLOCKING) {
            fault(CUDA_ERROR_INVALID_VALUE, "flags " + std::to_string(flags));
        }
        bool blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
        *stream = static_cast<CUstream>(driver().streams.add(new_stream(blocking)));
    });
}

PREP_API cuStreamCreate(CUstream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

PREP_API cuStreamDestroy_v2(CUstream handle) {
    return call("cuStreamDestroy", Needs::Cleanup, [&] {
        auto stream = driver().streams.remove(handle);
        if (stream->capture != nullptr) {
            stream->capture->valid = false;
            stream->capture->ends.erase(stream.get());
            stream->capture = nullptr;
            fault(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the stream is recorded");
        }
        // What is in it is still done.
        stream->destroyed = true;
        auto &all = stream->device.streams;
        for (auto at = all.begin(); stream->queue.empty() && at != all.end(); ++at) {
            if (*at == stream) {
                all.erase(at);
                return;
            }
        }
    });
}

PREP_API cuStreamSynchronize(CUstream handle) {
    return call("cuStreamSynchronize", Needs::Context, [&] {
        auto stream = stream_of(handle);
        forbid_waiting(*stream);
        complete(end_of(*stream));
    });
}

PREP_API cuStreamQuery(CUstream handle) {
    return call("cuStreamQuery", Needs::Context, [&] {
        auto stream = stream_of(handle);
        forbid_waiting(*stream);
        if (!poll(end_of(*stream))) {
            refuse(CUDA_ERROR_NOT_READY);
        }
    });
}

PREP_API cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
    return call("cuStreamWaitEvent", Needs::Context, [&] {
        auto stream = stream_of(handle);
        auto event = event_of(event_handle);
        if (auto capture = event->capture.lock()) {
            return join(*stream, *event, capture);
        }
        if (event->place == nullptr) {
            return;
        }
        if (stream->capture != nullptr) {
            stream->capture->valid = false;
            fault(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "the event was recorded before the recording began");
        }
        push(*stream, std::make_shared<Action>(Action{Action::Empty, "cuStreamWaitEvent", [] {}}), {event->place});
    });
}

PREP_API cuEventCreate(CUevent *event, unsigned flags) {
    return call("cuEventCreate", Needs::Context, [&] {
        bool timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
        auto made = std::make_shared<Event>(Event{*current_device, timed, nullptr, {}, {}});
        *event = static_cast<CUevent>(driver().events.add(made));
    });
}

PREP_API cuEventRecord(CUevent handle, CUstream stream_handle) {
    return call("cuEventRecord", Needs::Context, [&] {
        auto event = event_of(handle);
        auto stream = stream_of(stream_handle);
        if (&event->device != current_device) {
            fault(CUDA_ERROR_INVALID_HANDLE, "an event of another device");
        }
        if (stream->capture != nullptr) {
            event->capture = stream->capture;
            event->nodes = stream->capture->ends[stream.get()];
            event->place = nullptr;
            return;
        }
        push(*stream, std::make_shared<Action>(Action{Action::Empty, "cuEventRecord", [] {}}), {});
        event->place = stream->last;
        event->capture.reset();
    });
}

PREP_API cuEventQuery(CUevent handle) {
    return call("cuEventQuery", Needs::Context, [&] {
        auto event = event_of(handle);
        forbid_recorded(*event);
        forbid_unsafe();
        if (event->place != nullptr && !poll(event->place)) {
            refuse(CUDA_ERROR_NOT_READY);
        }
    });
}

PREP_API cuEventSynchronize(CUevent handle) {
    return call("cuEventSynchronize", Needs::Context, [&] {
        auto event = event_of(handle);
        forbid_recorded(*event);
        forbid_unsafe();
        if (event->place != nullptr) {
            complete(event->place);
        }
    });
}

PREP_API cuEventElapsedTime(float *milliseconds, CUevent start_handle, CUevent end_handle) {
    return call("cuEventElapsedTime", Needs::Context, [&] {
        auto start = event_of(start_handle), end = event_of(end_handle);
        if (!start->timed || !end->timed) {
            fault(CUDA_ERROR_INVALID_HANDLE, "an event that was made without times");
        }
        if (start->place == nullptr || end->place == nullptr) {
            fault(CUDA_ERROR_INVALID_HANDLE, "an event that was not recorded");
        }
        if (!start->place->done || !end->place->done) {
            refuse(CUDA_ERROR_NOT_READY);
        }
        *milliseconds = std::chrono::duration<float, std::milli>(end->place->at - start->place->at).count();
    });
}

PREP_API cuEventDestroy_v2(CUevent handle) {
    return call("cuEventDestroy", Needs::Cleanup, [&] { driver().events.remove(handle); });
}

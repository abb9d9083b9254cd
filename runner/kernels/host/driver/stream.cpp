#include "stream.h"

#include "call.h"
#include "capture.h"

#include <algorithm>
#include <cstring>

namespace prep {

namespace {

bool ready(const Pending &p) {
    return std::all_of(p.after.begin(), p.after.end(), [](const Mark &a) { return a->done; });
}

// The device is lost: nothing that is pending runs any more.
void lose(Device &device, const std::string &what, const Refusal &refusal) {
    device.broken = refusal.code;
    report_fault(what, refusal.fault);
    for (auto &s : device.streams) {
        for (Pending &p : s->queue) {
            p.end->done = true;
        }
        s->queue.clear();
    }
    refuse(refusal.code);
}

// A sum of the pinned memory that it reads.
uint64_t sum_of(const Action &action) {
    uint64_t sum = 1;
    for (const HostRange &range : action.host) {
        for (size_t i = 0; !range.written && i < range.bytes; i += 8) {
            uint64_t word = 0;
            std::memcpy(&word, range.at + i, range.bytes - i < 8 ? range.bytes - i : 8);
            sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
            sum ^= sum >> 29;
        }
    }
    return sum;
}

void run_first(Stream &stream) {
    Pending first = stream.queue.front();
    Device &device = stream.device;
    if (first.sum != 0 && first.sum != sum_of(*first.action)) {
        report_fault(first.action->what, "the host has changed pinned memory that the copy still has to read");
    }
    try {
        first.action->run();
    } catch (const Refusal &refusal) {
        lose(device, first.action->what, refusal);
    }
    first.end->done = true;
    first.end->at = std::chrono::steady_clock::now();
    stream.queue.pop_front();
    if (stream.destroyed && stream.queue.empty()) {
        auto same = [&](const std::shared_ptr<Stream> &s) { return s.get() == &stream; };
        device.streams.erase(std::find_if(device.streams.begin(), device.streams.end(), same));
    }
}

// The stream whose first action is the next to run on the way to a place.
Stream &first_needed(const Mark &place) {
    const Mark *at = &place;
    for (;;) {
        Stream &stream = *(*at)->stream;
        const auto &after = stream.queue.front().after;
        auto open = std::find_if(after.begin(), after.end(), [](const Mark &a) { return !a->done; });
        if (open == after.end()) {
            return stream;
        }
        at = &*open;
    }
}

std::vector<Stream *> ready_streams(Device &device) {
    std::vector<Stream *> all;
    for (auto &s : device.streams) {
        if (!s->queue.empty() && ready(s->queue.front())) {
            all.push_back(s.get());
        }
    }
    return all;
}

// The next to run on the way to a place, by the seed.
Stream &next(Device &device, const Mark &place) {
    Driver &d = driver();
    if (d.settings.seed == 0) {
        return first_needed(place);
    }
    std::vector<Stream *> all = ready_streams(device);
    if (d.settings.seed == 1) {
        // Those that nobody waits for first.
        Stream *needed = &first_needed(place);
        auto other = std::find_if(all.begin(), all.end(), [&](Stream *s) { return s != needed; });
        return other == all.end() ? *needed : **other;
    }
    return *all[d.random() % all.size()];
}

bool overlap(const HostRange &a, const HostRange &b) { return a.at < b.at + b.bytes && b.at < a.at + a.bytes; }

// What the host may not read until it is written.
void poison(const Action &action) {
    for (const HostRange &range : action.host) {
        if (range.written) {
            std::memset(range.at, 0xff, range.bytes);
        }
    }
}

} // namespace

std::shared_ptr<Stream> new_stream(bool blocking) {
    auto stream = std::make_shared<Stream>(*current_device, blocking);
    current_device->streams.push_back(stream);
    return stream;
}

std::shared_ptr<Stream> stream_of(CUstream handle) {
    if (handle == nullptr || handle == CU_STREAM_LEGACY) {
        return current_device->legacy;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        auto &mine = current_device->per_thread[std::this_thread::get_id()];
        if (mine == nullptr) {
            mine = new_stream(true);
        }
        return mine;
    }
    auto stream = driver().streams.get(handle);
    if (&stream->device != current_device) {
        fault(CUDA_ERROR_INVALID_HANDLE, "a stream of another device");
    }
    return stream;
}

void enqueue(Stream &stream, Action action) {
    if (stream.capture != nullptr) {
        return record(stream, std::make_shared<Action>(std::move(action)));
    }
    push(stream, std::make_shared<Action>(std::move(action)), {});
}

void push(Stream &stream, std::shared_ptr<const Action> action, std::vector<Mark> after) {
    Device &device = stream.device;
    bool legacy = &stream == device.legacy.get();
    if (legacy) {
        forbid_legacy();
    }
    for (auto &other : device.streams) {
        bool ordered = legacy ? other->blocking : stream.blocking && other == device.legacy;
        if (ordered && other.get() != &stream && other->last != nullptr && !other->last->done) {
            after.push_back(other->last);
        }
    }
    bool settled = true;
    for (const HostRange &range : action->host) {
        settled = settled && !range.written && !pending_on(device, range, true);
    }
    poison(*action);
    uint64_t sum = settled && !action->host.empty() ? sum_of(*action) : 0;
    stream.last = std::make_shared<Marker>(Marker{&stream, false, {}});
    stream.queue.push_back({std::move(action), std::move(after), stream.last, sum});
}

Mark end_of(Stream &stream) {
    if (stream.last == nullptr) {
        stream.last = std::make_shared<Marker>(Marker{&stream, true, std::chrono::steady_clock::now()});
    }
    return stream.last;
}

void complete(const Mark &place) {
    // Its stream may end on the way.
    Device &device = place->done ? *current_device : place->stream->device;
    while (!place->done) {
        run_first(next(device, place));
    }
}

void complete_all(Device &device) {
    for (;;) {
        auto busy = std::find_if(device.streams.begin(), device.streams.end(),
                                 [](const std::shared_ptr<Stream> &s) { return !s->queue.empty(); });
        if (busy == device.streams.end()) {
            return;
        }
        complete(Mark((*busy)->queue.back().end));
    }
}

bool poll(const Mark &place) {
    if (!place->done) {
        run_first(next(place->stream->device, place));
    }
    return place->done;
}

bool pending_on(Device &device, const HostRange &range, bool writes) {
    for (auto &s : device.streams) {
        for (const Pending &p : s->queue) {
            for (const HostRange &other : p.action->host) {
                if (overlap(range, other) && (other.written || !writes)) {
                    return true;
                }
            }
        }
    }
    return false;
}

} // namespace prep

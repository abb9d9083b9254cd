#include "workers.h"

#include "access.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace prep {

namespace {

// Threads that wait for work until the process ends. Each keeps its fibers' stacks from one launch to the next.
class Workers {
  public:
    // Calls work(0), work(1) ... work(count - 1) at the same time.
    void run(unsigned count, const std::function<void(unsigned)> &work) {
        std::unique_lock<std::mutex> lock(mutex);
        while (threads < count) {
            std::thread([this, i = threads] { serve(i); }).detach();
            threads++;
        }
        job = &work;
        wanted = open = count;
        round++;
        started.notify_all();
        ended.wait(lock, [&] { return open == 0; });
    }

  private:
    void serve(unsigned i) {
        std::unique_lock<std::mutex> lock(mutex);
        for (unsigned long seen = 0;;) {
            started.wait(lock, [&] { return round != seen; });
            seen = round;
            if (i < wanted) {
                lock.unlock();
                (*job)(i);
                lock.lock();
                if (--open == 0) {
                    ended.notify_one();
                }
            }
        }
    }

    std::mutex mutex;
    std::condition_variable started, ended;
    const std::function<void(unsigned)> *job = nullptr;
    unsigned threads = 0, wanted = 0, open = 0;
    unsigned long round = 0;
};

Fault run_share(const Kernel &kernel, void **arguments, const Order &order) {
    found_code = CUDA_ERROR_LAUNCH_FAILED;
    const char *report = launch(kernel, arguments, order);
    if (report == nullptr) {
        return {};
    }
    // What the kernels' own functions (lib/device.cuh) say of an address.
    bool misaligned = std::strstr(report, "not a multiple of") != nullptr;
    return {misaligned ? CUDA_ERROR_MISALIGNED_ADDRESS : found_code, report};
}

} // namespace

Fault run_blocks(const Kernel &kernel, void **arguments, const Order &order, unsigned threads) {
    static Workers &workers = *new Workers;
    size_t blocks = size_t(order.grid.x) * order.grid.y * order.grid.z;
    threads = blocks < threads ? unsigned(blocks) : threads;
    if (threads <= 1) {
        return run_share(kernel, arguments, order);
    }
    std::vector<Fault> found(threads);
    workers.run(threads, [&](unsigned i) {
        Order share = order;
        share.first = i;
        share.step = threads;
        found[i] = run_share(kernel, arguments, share);
    });
    for (const Fault &fault : found) {
        if (fault.code != CUDA_SUCCESS) {
            return fault;
        }
    }
    return {};
}

} // namespace prep

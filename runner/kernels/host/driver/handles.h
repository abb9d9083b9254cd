// Handles that the caller holds. A value is never given out twice, so that a use after the end is seen.
#pragma once

#include "refusal.h"

#include <map>
#include <memory>

namespace prep {

// No address of memory: whoever reads through it is stopped by the processor.
uintptr_t new_handle();

template <class T> class Handles {
  public:
    explicit Handles(const char *plural) : plural(plural) {}

    void *add(std::shared_ptr<T> object) {
        uintptr_t handle = new_handle();
        objects[handle] = std::move(object);
        return reinterpret_cast<void *>(handle);
    }
    std::shared_ptr<T> get(void *handle) const {
        auto at = objects.find(reinterpret_cast<uintptr_t>(handle));
        if (at == objects.end()) {
            fault(CUDA_ERROR_INVALID_HANDLE, std::string("not one of the ") + plural + " that there are");
        }
        return at->second;
    }
    std::shared_ptr<T> remove(void *handle) {
        std::shared_ptr<T> object = get(handle);
        objects.erase(reinterpret_cast<uintptr_t>(handle));
        return object;
    }
    template <class F> void remove_if(F matches) {
        for (auto at = objects.begin(); at != objects.end();) {
            at = matches(*at->second) ? objects.erase(at) : std::next(at);
        }
    }
    const std::map<uintptr_t, std::shared_ptr<T>> &all() const { return objects; }
    const char *const plural;

  private:
    std::map<uintptr_t, std::shared_ptr<T>> objects;
};

} // namespace prep

#include "call.h"

namespace prep {

void enter(const char *name, Needs needs) {
    Driver &d = driver();
    unsigned long calls = ++d.calls[name];
    const Settings &s = d.settings;
    bool fails = s.fail_at > 0 && calls >= s.fail_at && calls - s.fail_at < s.fail_count;
    if (fails && s.fail_name == name) {
        refuse(s.fail_with);
    }
    if (needs == Needs::Nothing) {
        return;
    }
    if (!d.initialised) {
        fault(CUDA_ERROR_NOT_INITIALIZED, "before cuInit");
    }
    if (needs == Needs::Init) {
        return;
    }
    if (current_device == nullptr || current_device->retained == 0) {
        fault(CUDA_ERROR_INVALID_CONTEXT, "no context is current on this thread");
    }
    if (needs == Needs::Context && current_device->broken != CUDA_SUCCESS) {
        refuse(current_device->broken);
    }
}

CUresult settle(const char *name, Needs needs, const Refusal &refusal) {
    if (!refusal.fault.empty()) {
        report_fault(name, refusal.fault);
    }
    bool on_device = needs == Needs::Context || needs == Needs::Cleanup;
    if (refusal.code == CUDA_SUCCESS && on_device && current_device->broken != CUDA_SUCCESS) {
        return current_device->broken;
    }
    return refusal.code;
}

} // namespace prep

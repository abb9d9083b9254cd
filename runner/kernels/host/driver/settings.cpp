#include "settings.h"

#include <cstdio>
#include <cstdlib>

namespace prep {

namespace {

std::string text_of(const char *name) {
    const char *text = std::getenv(name);
    return text == nullptr ? "" : text;
}

unsigned long number_of(const char *name, unsigned long otherwise) {
    std::string text = text_of(name);
    if (text.empty()) {
        return otherwise;
    }
    char *end = nullptr;
    unsigned long value = std::strtoul(text.c_str(), &end, 10);
    if (*end != 0) {
        // A test that asks for nonsense must not pass by the default.
        std::fprintf(stderr, "stand-in: %s=%s is not a number\n", name, text.c_str());
        std::abort();
    }
    return value;
}

} // namespace

Settings::Settings() {
    memory = number_of("PREP_STANDIN_MEMORY", memory);
    seed = unsigned(number_of("PREP_STANDIN_SEED", seed));
    devices = int(number_of("PREP_STANDIN_DEVICES", 1));
    threads = unsigned(number_of("PREP_STANDIN_THREADS", threads));
    report = text_of("PREP_STANDIN_REPORT");
    std::string capability = text_of("PREP_STANDIN_CAPABILITY");
    if (!capability.empty() && std::sscanf(capability.c_str(), "%d.%d", &major, &minor) != 2) {
        std::fprintf(stderr, "stand-in: PREP_STANDIN_CAPABILITY=%s is not as 8.9\n", capability.c_str());
        std::abort();
    }
    old = int(number_of("PREP_STANDIN_OLD", 0));
    version = int(number_of("PREP_STANDIN_VERSION", version));
    fail_count = number_of("PREP_STANDIN_FAIL_COUNT", 1);
    std::string fail = text_of("PREP_STANDIN_FAIL");
    if (!fail.empty()) {
        char name[64];
        int code = -1;
        if (std::sscanf(fail.c_str(), "%63[^:]:%lu:%d", name, &fail_at, &code) < 2) {
            std::fprintf(stderr, "stand-in: PREP_STANDIN_FAIL=%s is not as cuMemAlloc:3\n", fail.c_str());
            std::abort();
        }
        fail_name = name;
        bool allocates = fail_name.find("Alloc") != std::string::npos;
        fail_with = code >= 0 ? CUresult(code) : allocates ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
    }
}

} // namespace prep

// What a PTX text says of its kernels: names, parameters, limits. Not what they do.
#pragma once

#include "refusal.h"

#include <map>
#include <vector>

namespace prep {

struct Parameter {
    size_t bytes, align;
};

struct Entry {
    std::vector<Parameter> parameters;
    // `.maxntid`, in all; 0 where it says nothing.
    unsigned most_threads = 0;
    // Shared memory of fixed size.
    size_t shared = 0;
};

struct Ptx {
    // Of the language, and of the least device: 81 is 8.1, 80 is sm_80.
    unsigned version = 0, target = 0;
    std::map<std::string, Entry> entries;
};

// Throws a text where it is no PTX.
Ptx parse_ptx(const std::string &text);

} // namespace prep

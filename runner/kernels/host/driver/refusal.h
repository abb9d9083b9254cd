// How a call of the interface fails.
#pragma once

#include "types.h"

#include <string>

namespace prep {

// What the call returns, and what a report says of it. Without a text the caller did nothing wrong.
struct Refusal {
    CUresult code;
    std::string fault;
};

[[noreturn]] inline void refuse(CUresult code) { throw Refusal{code, ""}; }
[[noreturn]] inline void fault(CUresult code, const std::string &text) { throw Refusal{code, text}; }

} // namespace prep

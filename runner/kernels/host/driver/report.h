// What the run did and what a GPU would have punished, for the tests: on standard error, and as lines of JSON at the
// end of the file that PREP_STANDIN_REPORT names.
//
//   {"fault": TEXT, "call": NAME}      as soon as it is found
//   {"summary": {...}}                 at exit, where cuInit was called
#pragma once

#include "types.h"

#include <map>
#include <string>

namespace prep {

struct Counts {
    std::map<std::string, unsigned long> launches;
    unsigned long graph_launches = 0;
    size_t peak = 0, to_device = 0, to_host = 0;
    // What was never given back: how many, of each kind.
    std::map<std::string, unsigned long> leaks;
    size_t leaked_bytes = 0;
    // Work that the host never waited for.
    unsigned long unwaited = 0;
};

void report_fault(const std::string &call, const std::string &text);
void report_summary(const Counts &counts);

const char *name_of(CUresult result);
const char *text_of(CUresult result);

} // namespace prep

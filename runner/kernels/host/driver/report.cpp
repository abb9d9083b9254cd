#include "report.h"

#include "driver.h"

#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

namespace prep {

namespace {

std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (char c : text) {
        char code[8];
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 32) {
            std::snprintf(code, sizeof code, "\\u%04x", unsigned(c));
            out += code;
        } else {
            out += c;
        }
    }
    return out + "\"";
}

std::string object(const std::map<std::string, unsigned long> &counts) {
    std::string out = "{";
    for (auto &c : counts) {
        out += (out.size() > 1 ? "," : "") + quoted(c.first) + ":" + std::to_string(c.second);
    }
    return out + "}";
}

// In one piece, so that processes do not mix their lines.
void append(const std::string &line) {
    const std::string &path = driver().settings.report;
    if (path.empty()) {
        return;
    }
    int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0 || write(file, line.data(), line.size()) != ssize_t(line.size())) {
        std::fprintf(stderr, "stand-in: cannot write %s\n", path.c_str());
    }
    if (file >= 0) {
        close(file);
    }
}

} // namespace

void report_fault(const std::string &call, const std::string &text) {
    std::fprintf(stderr, "stand-in: %s: %s\n", call.c_str(), text.c_str());
    append("{\"fault\":" + quoted(text) + ",\"call\":" + quoted(call) + "}\n");
}

void report_summary(const Counts &c) {
    auto number = [](const char *name, unsigned long value) {
        return ",\"" + std::string(name) + "\":" + std::to_string(value);
    };
    append("{\"summary\":{\"launches\":" + object(c.launches) + number("graph_launches", c.graph_launches) +
           number("peak_bytes", c.peak) + number("bytes_to_device", c.to_device) +
           number("bytes_to_host", c.to_host) + number("unwaited", c.unwaited) + ",\"leaks\":" + object(c.leaks) +
           number("leaked_bytes", c.leaked_bytes) + "}}\n");
    for (auto &leak : c.leaks) {
        std::fprintf(stderr, "stand-in: never given back: %lu %s\n", leak.second, leak.first.c_str());
    }
}

const char *name_of(CUresult result) {
    switch (result) {
#define X(value, name, text)                                                                                           \
    case name:                                                                                                         \
        return #name;
        PREP_RESULTS(X)
#undef X
    }
    return nullptr;
}

const char *text_of(CUresult result) {
    switch (result) {
#define X(value, name, text)                                                                                           \
    case name:                                                                                                         \
        return text;
        PREP_RESULTS(X)
#undef X
    }
    return nullptr;
}

} // namespace prep

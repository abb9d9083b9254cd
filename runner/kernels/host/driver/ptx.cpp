#include "ptx.h"

#include <cctype>
#include <cstdlib>

namespace prep {

namespace {

// Words, numbers and single signs; comments are left out.
class Words {
  public:
    explicit Words(const std::string &text) : text(text) { advance(); }

    const std::string &peek() const { return word; }
    bool at_end() const { return word.empty(); }
    std::string take() {
        std::string taken = word;
        if (taken.empty()) {
            throw std::string("the text ends too early");
        }
        advance();
        return taken;
    }
    bool take_if(const char *expected) {
        bool same = word == expected;
        if (same) {
            advance();
        }
        return same;
    }
    void expect(const char *expected) {
        std::string taken = take();
        if (taken != expected) {
            throw "`" + taken + "` where `" + expected + "` is expected, line " + std::to_string(line);
        }
    }
    size_t number() {
        std::string taken = take();
        char *end = nullptr;
        size_t value = std::strtoul(taken.c_str(), &end, 0);
        if (*end != 0 || !std::isdigit(static_cast<unsigned char>(taken[0]))) {
            throw "`" + taken + "` where a number is expected, line " + std::to_string(line);
        }
        return value;
    }

  private:
    static bool in_word(char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '.' || c == '%';
    }
    void skip_blank() {
        for (;;) {
            if (text.compare(at, 2, "//") == 0) {
                at = text.find('\n', at);
            } else if (text.compare(at, 2, "/*") == 0) {
                at = text.find("*/", at);
                at = at == std::string::npos ? at : at + 2;
            } else if (at < text.size() && std::isspace(static_cast<unsigned char>(text[at]))) {
                line += text[at++] == '\n';
            } else {
                return;
            }
            at = at == std::string::npos ? text.size() : at;
        }
    }
    void advance() {
        skip_blank();
        size_t start = at;
        if (at < text.size() && text[at] == '"') {
            at = text.find('"', at + 1);
            at = at == std::string::npos ? text.size() : at + 1;
        } else if (at < text.size() && !in_word(text[at])) {
            at++;
        } else {
            while (at < text.size() && in_word(text[at])) {
                at++;
            }
        }
        word = text.substr(start, at - start);
    }

    const std::string &text;
    size_t at = 0, line = 1;
    std::string word;
};

// `.u32`: 4.
size_t bytes_of_type(const std::string &type) {
    size_t digits = type.find_last_not_of("0123456789") + 1;
    size_t bits = digits < type.size() ? std::strtoul(type.c_str() + digits, nullptr, 10) : 0;
    bool known = type.size() > 2 && type[0] == '.' && std::string("busf").find(type[1]) != std::string::npos;
    if (!known || digits != 2 || (bits != 8 && bits != 16 && bits != 32 && bits != 64)) {
        throw "`" + type + "` is no type";
    }
    return bits / 8;
}

// After `.param`.
Parameter parameter(Words &words) {
    Parameter p{0, 0};
    if (words.take_if(".align")) {
        p.align = words.number();
    }
    p.bytes = bytes_of_type(words.take());
    p.align = p.align == 0 ? p.bytes : p.align;
    while (words.peek()[0] == '.') {
        // .ptr .global .align 4: what it points to.
        if (words.take() == ".align") {
            words.number();
        }
    }
    words.take();
    if (words.take_if("[")) {
        p.bytes *= words.number();
        words.expect("]");
    }
    return p;
}

// After `.shared`; 0 for what the launch gives.
size_t shared_bytes(Words &words) {
    if (words.take_if(".align")) {
        words.number();
    }
    size_t bytes = bytes_of_type(words.take());
    words.take();
    if (words.take_if("[")) {
        bytes = words.peek() == "]" ? 0 : bytes * words.number();
        words.expect("]");
    }
    return bytes;
}

// From `{` to its `}`.
void body(Words &words, Entry &entry) {
    words.expect("{");
    for (int depth = 1; depth > 0;) {
        std::string word = words.take();
        depth += word == "{" ? 1 : word == "}" ? -1 : 0;
        entry.shared += word == ".shared" ? shared_bytes(words) : 0;
    }
}

// After `.entry`.
void parse_entry(Words &words, Ptx &ptx) {
    std::string name = words.take();
    Entry entry;
    if (words.take_if("(")) {
        while (!words.take_if(")")) {
            words.expect(".param");
            entry.parameters.push_back(parameter(words));
            words.take_if(",");
        }
    }
    while (words.peek() != "{" && words.peek() != ";") {
        std::string directive = words.take();
        if (directive == ".maxntid" || directive == ".reqntid") {
            entry.most_threads = unsigned(words.number());
            while (words.take_if(",")) {
                entry.most_threads *= unsigned(words.number());
            }
        }
    }
    if (words.take_if(";")) {
        return;
    }
    body(words, entry);
    if (!ptx.entries.emplace(name, entry).second) {
        throw "two kernels `" + name + "`";
    }
}

} // namespace

Ptx parse_ptx(const std::string &text) {
    Words words(text);
    Ptx ptx;
    words.expect(".version");
    std::string version = words.take();
    size_t dot = version.find('.');
    if (dot == std::string::npos || !std::isdigit(static_cast<unsigned char>(version[0]))) {
        throw "`" + version + "` is no version";
    }
    ptx.version = unsigned(std::atoi(version.c_str()) * 10 + std::atoi(version.c_str() + dot + 1));
    words.expect(".target");
    std::string target = words.take();
    if (target.compare(0, 3, "sm_") != 0) {
        throw "`" + target + "` is no target";
    }
    ptx.target = unsigned(std::atoi(target.c_str() + 3));
    int depth = 0;
    while (!words.at_end()) {
        std::string word = words.take();
        if (depth == 0 && word == ".entry") {
            parse_entry(words, ptx);
        }
        depth += word == "{" ? 1 : word == "}" ? -1 : 0;
    }
    if (depth != 0) {
        throw std::string("braces that do not match");
    }
    return ptx;
}

} // namespace prep

// Runs kernels for the tests: a job on standard input, its buffers back on standard output, until the input ends.
//
//   job     name, seed, grid[3], block[3], shared: u32 each (a name: its length and bytes)
//           count, then for each buffer:   bytes u64, written u32, the bytes
//           count, then for each argument: kind u32 and its value; a pointer is a buffer's number and an offset in it
//   answer  0 and the bytes of the written buffers, or 1 and a text
// All numbers little-endian, as the processors are that this is compiled for.

#include "cuda.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

void read(void *to, size_t size) {
    if (size > 0 && std::fread(to, 1, size, stdin) != size) {
        std::exit(0);
    }
}
template <class T> T read() {
    T value;
    read(&value, sizeof value);
    return value;
}
void write(const void *from, size_t size) { std::fwrite(from, 1, size, stdout); }

struct Buffer {
    void *bytes;
    uint64_t size;
    bool written;
};

enum Kind : uint32_t { U32 = 0, F32 = 1, U64 = 2, F64 = 3, Read = 4, Write = 5, Null = 6, Struct = 7 };

struct Value {
    alignas(8) unsigned char bytes[256];
    size_t size = 0;
    char letter = 0;
    void push(const void *from, size_t n) {
        if (size + n > sizeof bytes) {
            std::abort();
        }
        std::memcpy(bytes + size, from, n);
        size += n;
    }
};

void read_value(const std::vector<Buffer> &buffers, Value &to) {
    uint32_t kind = read<uint32_t>();
    uint64_t raw = kind == Struct ? read<uint32_t>() : read<uint64_t>();
    switch (kind) {
    case U32:
        to.letter = 'u';
        return to.push(&raw, 4);
    case F32:
        to.letter = 'f';
        return to.push(&raw, 4);
    case U64:
        to.letter = 'l';
        return to.push(&raw, 8);
    case F64:
        to.letter = 'd';
        return to.push(&raw, 8);
    case Read:
    case Write: {
        uint64_t offset = read<uint64_t>();
        char *at = static_cast<char *>(buffers.at(raw).bytes) + offset;
        to.letter = kind == Read ? 'p' : 'P';
        return to.push(&at, 8);
    }
    case Null: {
        to.letter = raw ? 'P' : 'p';
        void *none = nullptr;
        return to.push(&none, 8);
    }
    case Struct:
        for (uint64_t i = 0; i < raw; i++) {
            read_value(buffers, to);
        }
        to.letter = 's';
        return;
    default:
        std::abort();
    }
}

// What does not fit between the launch and the kernel; empty where all does.
std::string misfit(const prep::Kernel *kernel, const std::vector<Value> &values) {
    if (kernel == nullptr) {
        return "no such kernel";
    }
    std::string given;
    for (const Value &v : values) {
        given += v.letter;
    }
    if (given != kernel->signature) {
        return "arguments " + given + ", the kernel takes " + kernel->signature;
    }
    for (size_t i = 0; i < values.size(); i++) {
        if (values[i].size != kernel->sizes[i]) {
            return "argument " + std::to_string(i) + " has " + std::to_string(values[i].size) + " bytes, the kernel takes " +
                   std::to_string(kernel->sizes[i]);
        }
    }
    return "";
}

std::vector<void *> shared;

} // namespace

namespace prep {

void *shared_room(size_t size) {
    void *room = nullptr;
    if (posix_memalign(&room, 128, size) != 0) {
        std::abort();
    }
    shared.push_back(room);
    return room;
}

void shared_return() {
    for (void *room : shared) {
        std::free(room);
    }
    shared.clear();
}

} // namespace prep

int main() {
    for (;;) {
        std::string name(read<uint32_t>(), ' ');
        read(&name[0], name.size());
        prep::Order order{};
        order.seed = read<uint32_t>();
        unsigned sizes[7];
        read(sizes, sizeof sizes);
        order.grid = {sizes[0], sizes[1], sizes[2]};
        order.block = {sizes[3], sizes[4], sizes[5]};
        order.shared = sizes[6];
        std::vector<Buffer> buffers(read<uint32_t>());
        for (Buffer &b : buffers) {
            b.size = read<uint64_t>();
            b.written = read<uint32_t>() != 0;
            // Of exactly this size, so that what lies beyond is seen.
            if (posix_memalign(&b.bytes, 256, b.size > 0 ? b.size : 1) != 0) {
                std::abort();
            }
            read(b.bytes, b.size);
        }
        std::vector<Value> values(read<uint32_t>());
        std::vector<void *> pointers;
        for (Value &v : values) {
            read_value(buffers, v);
        }
        for (Value &v : values) {
            pointers.push_back(v.bytes);
        }
        const prep::Kernel *kernel = prep::find(name.c_str());
        std::string report = misfit(kernel, values);
        if (!report.empty()) {
            report = "kernel " + name + ": " + report;
        } else if (const char *text = prep::launch(*kernel, pointers.data(), order)) {
            report = text;
        }
        uint32_t failed = report.empty() ? 0 : 1;
        write(&failed, 4);
        if (failed) {
            uint32_t length = uint32_t(report.size());
            write(&length, 4);
            write(report.data(), length);
        } else {
            for (const Buffer &b : buffers) {
                if (b.written) {
                    write(b.bytes, b.size);
                }
            }
        }
        std::fflush(stdout);
        for (const Buffer &b : buffers) {
            std::free(b.bytes);
        }
    }
}

// Graphs: what was recorded, as often as wanted.

#include "call.h"

#include <algorithm>

using namespace prep;

namespace {

// A node after all those that it comes after; else as the seed has it.
std::vector<size_t> order_of(const std::vector<Node> &nodes) {
    std::vector<size_t> order, open;
    std::vector<bool> done(nodes.size(), false);
    while (order.size() < nodes.size()) {
        open.clear();
        for (size_t n = 0; n < nodes.size() && (driver().settings.seed > 0 || open.empty()); n++) {
            bool can = !done[n];
            for (size_t before : nodes[n].after) {
                can = can && done[before];
            }
            if (can) {
                open.push_back(n);
            }
        }
        size_t chosen = driver().settings.seed == 1 ? open.back() : open[driver().random() % open.size()];
        done[chosen] = true;
        order.push_back(chosen);
    }
    return order;
}

void run_graph(const std::vector<Node> &nodes) {
    for (size_t n : order_of(nodes)) {
        const Action &action = *nodes[n].action;
        try {
            action.run();
        } catch (const Refusal &refusal) {
            throw Refusal{refusal.code, action.what + " in a graph: " + refusal.fault};
        }
    }
}

} // namespace

PREP_API cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph handle, unsigned long long flags) {
    return call("cuGraphInstantiateWithFlags", Needs::Context, [&] {
        *exec = nullptr;
        auto graph = driver().graphs.get(handle);
        // Nodes that launch from the device need what was not recorded for it.
        if (flags >= 16 || (flags & 4) != 0) {
            fault(CUDA_ERROR_INVALID_VALUE, "flags " + std::to_string(flags));
        }
        *exec = static_cast<CUgraphExec>(driver().execs.add(std::make_shared<GraphExec>(GraphExec{*current_device, graph->nodes})));
    });
}

PREP_API cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    return call("cuGraphLaunch", Needs::Context, [&] {
        auto exec = driver().execs.get(handle);
        auto stream = stream_of(stream_handle);
        if (&exec->device != current_device) {
            fault(CUDA_ERROR_INVALID_HANDLE, "a graph of another device");
        }
        driver().counts.graph_launches++;
        Action action{Action::Graph, "cuGraphLaunch", [exec] { run_graph(exec->nodes); }};
        for (const Node &node : exec->nodes) {
            action.host.insert(action.host.end(), node.action->host.begin(), node.action->host.end());
        }
        enqueue(*stream, action);
    });
}

PREP_API cuGraphUpload(CUgraphExec handle, CUstream stream) {
    return call("cuGraphUpload", Needs::Context, [&] {
        driver().execs.get(handle);
        enqueue(*stream_of(stream), {Action::Empty, "cuGraphUpload", [] {}});
    });
}

PREP_API cuGraphExecDestroy(CUgraphExec handle) {
    return call("cuGraphExecDestroy", Needs::Cleanup, [&] { driver().execs.remove(handle); });
}

PREP_API cuGraphDestroy(CUgraph handle) {
    return call("cuGraphDestroy", Needs::Cleanup, [&] { driver().graphs.remove(handle); });
}

PREP_API cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count) {
    return call("cuGraphGetNodes", Needs::Context, [&] {
        auto graph = driver().graphs.get(handle);
        size_t room = *count, all = graph->nodes.size();
        *count = nodes == nullptr ? all : std::min(room, all);
        for (size_t i = 0; nodes != nullptr && i < room; i++) {
            nodes[i] = i < all ? reinterpret_cast<CUgraphNode>(&graph->nodes[i]) : nullptr;
        }
    });
}

PREP_API cuGraphNodeGetType(CUgraphNode node, int *type) {
    return call("cuGraphNodeGetType", Needs::Context,
                [&] { *type = reinterpret_cast<const Node *>(node)->action->kind; });
}

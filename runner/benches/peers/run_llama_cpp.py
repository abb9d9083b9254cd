"""llama.cpp on the shapes of `cargo bench -p runner --bench speed`.

    PREP_LLAMA_CPP=path/to/python cargo bench -p runner --bench speed

where that Python has `llama-cpp-python` (built for this machine), `gguf` and `numpy`. The benchmark calls
`run_llama_cpp.py KIND FOLDER THREADS` between its own measurements; KIND is `bf16` or `q8_0`. The first call with a folder
writes random weights into it as GGUF, later ones find them. One JSON object is printed: tokens a second, best of some.
"""

import ctypes
import json
import os
import sys
import time

HIDDEN, LAYERS, EXPERTS, CHOSEN, INTER = 1024, 8, 32, 4, 512
QUERIES, PAIRS, DIM, VOCAB = 16, 4, 128, 32000
PROMPT = 64


def write(path, kind):
    import gguf
    import numpy as np

    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTER)
    writer.add_expert_feed_forward_length(INTER)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(CHOSEN)
    writer.add_head_count(QUERIES)
    writer.add_head_count_kv(PAIRS)
    writer.add_key_length(DIM)
    writer.add_value_length(DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(VOCAB)

    def matrix(name, *shape, plain=False):
        # As in the benchmark's own files: sign and mantissa random, 2^-6 to 2^-5 in size.
        bits = random.integers(0, 1 << 16, shape, dtype=np.uint16) & 0x807F | 0x3C80
        if kind == "q8_0" and not plain:
            numbers = (bits.astype(np.uint32) << 16).view(np.float32)
            raw = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def ones(name, width):
        writer.add_tensor(name, np.ones(width, np.float32))

    # What prep's FP8 leaves in 16 bit, Q8_0 does too, so that both read as much.
    matrix("token_embd.weight", VOCAB, HIDDEN, plain=True)
    matrix("output.weight", VOCAB, HIDDEN, plain=True)
    ones("output_norm.weight", HIDDEN)
    for n in range(LAYERS):
        at = f"blk.{n}."
        ones(at + "attn_norm.weight", HIDDEN)
        ones(at + "ffn_norm.weight", HIDDEN)
        ones(at + "attn_q_norm.weight", DIM)
        ones(at + "attn_k_norm.weight", DIM)
        matrix(at + "attn_q.weight", QUERIES * DIM, HIDDEN)
        matrix(at + "attn_k.weight", PAIRS * DIM, HIDDEN)
        matrix(at + "attn_v.weight", PAIRS * DIM, HIDDEN)
        matrix(at + "attn_output.weight", HIDDEN, QUERIES * DIM)
        # llama.cpp keeps routers in f32.
        gate = random.standard_normal((EXPERTS, HIDDEN)).astype("float32") / 32
        writer.add_tensor(at + "ffn_gate_inp.weight", gate)
        matrix(at + "ffn_gate_exps.weight", EXPERTS, INTER, HIDDEN)
        matrix(at + "ffn_up_exps.weight", EXPERTS, INTER, HIDDEN)
        matrix(at + "ffn_down_exps.weight", EXPERTS, HIDDEN, INTER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Runner:
    def __init__(self, path, threads):
        import llama_cpp as lib

        self.lib = lib
        lib.llama_backend_init()
        # Kept alive: llama.cpp only borrows it.
        self.quiet = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self.quiet, ctypes.c_void_p(0))
        self.model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        assert self.model, f"llama.cpp cannot load {path}"
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 512, 512, 512
        params.n_threads = params.n_threads_batch = threads
        self.context = lib.llama_init_from_model(self.model, params)
        assert self.context, "llama.cpp makes no context"

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def feed(self, count, salt):
        """Seconds for `count` tokens."""
        ids = [(i * 7919 + salt * 104729 + 17) % VOCAB for i in range(count)]
        tokens = (self.lib.llama_token * count)(*ids)
        start = time.perf_counter()
        done = self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(tokens, count))
        self.lib.llama_synchronize(self.context)
        assert done == 0, f"llama_decode returned {done}"
        return time.perf_counter() - start


def main():
    kind, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    path = os.path.join(folder, f"{kind}.gguf")
    if not os.path.exists(path):
        write(path, kind)
    runner = Runner(path, threads)
    token = prompt = 1e9
    for _ in range(6):
        runner.clear()
        prompt = min(prompt, runner.feed(PROMPT, 7))
        runner.clear()
        runner.feed(16, 1)
        token = min(token, min(runner.feed(1, i) for i in range(24)))
    print(json.dumps({"decode": 1 / token, "prompt": PROMPT / prompt}))


if __name__ == "__main__":
    main()

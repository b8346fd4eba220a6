#!/usr/bin/env python3
"""Greedy tokens of llama.cpp, for tests/model/smollm2_oracle_test.cpp: by the PyPI package xllamacpp, or llama-cpp-python
where that is installed in its place.

usage: oracle_llama_cpp.py MODEL.gguf PROMPTS NUM_TOKENS OUT

PROMPTS has one prompt a line: token ids separated by spaces. OUT gets llama.cpp's system-info line, then one line a prompt:
"id margin" for every generated token, margin being the gap between the two largest log-probabilities. A line may end early
at a stop token.
"""
import sys


def by_server(xllamacpp, model, num_tokens):
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 512
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 2
    params.n_parallel = 1
    params.warmup = False
    server = xllamacpp.Server(params)

    def answer(prompt):
        reply = server.handle_completions({
            "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "logprobs": 2, "cache_prompt": False})
        for token in reply["choices"][0]["logprobs"]["content"]:
            best, second = token["top_logprobs"][:2]
            yield token["id"], best["logprob"] - second["logprob"]

    return xllamacpp.get_system_info(), answer


def by_bindings(llama_cpp, model, num_tokens):
    llama = llama_cpp.Llama(model_path=model, n_ctx=512, n_threads=2, n_threads_batch=2, logits_all=True, verbose=False)
    vocabulary = llama_cpp.llama_model_get_vocab(llama.model)

    def answer(prompt):
        llama.reset()
        llama.eval(prompt)
        for _ in range(num_tokens):
            logits = llama.scores[llama.n_tokens - 1]
            second, best = logits.argpartition(-2)[-2:]
            yield int(best), float(logits[best] - logits[second])
            if llama_cpp.llama_vocab_is_eog(vocabulary, int(best)):
                return
            llama.eval([int(best)])

    return llama_cpp.llama_print_system_info().decode(), answer


def main(model, prompts_path, num_tokens, out_path):
    try:
        import xllamacpp
        info, answer = by_server(xllamacpp, model, int(num_tokens))
    except ImportError:
        import llama_cpp
        info, answer = by_bindings(llama_cpp, model, int(num_tokens))
    with open(out_path, "w") as out:
        out.write(" ".join(info.split()) + "\n")
        for line in open(prompts_path):
            words = [f"{token} {margin:.5f}" for token, margin in answer([int(word) for word in line.split()])]
            out.write(" ".join(words) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])

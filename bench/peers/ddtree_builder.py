#!/usr/bin/env python3
"""ddtree_builder.py CHECKOUT OUT.json: times DDTree's own tree builder (liranringel/ddtree at c96427a, on the CPU) and its compile step, which fills the inputs of
verification on the GPU, on the shapes of `coppice bench kernels` and writes the JSON that its --peers reads.

CHECKOUT holds their ddtree.py and dflash.py, which run as they are; what they import of models and logging is not used here and is put in by name. Their builder
takes one sequence, so a batch is a loop over it. `trees` is heap, visibility and compile, without the top-k, the log-sum-exp and the copies to the host that their
builder begins with (ours has them in another row); the whole stands beside it. Host-timed, medians. Needs torch with CUDA.
"""
import json
import statistics
import sys
import time
import types

import torch

VOCAB, CONTEXT = 163840, 4096


def load(checkout):
    for name, words in {"loguru": ["logger"], "transformers": ["AutoModelForCausalLM", "DynamicCache"],
                        "model": ["DFlashDraftModel", "sample", "extract_context_feature"]}.items():
        module = types.ModuleType(name)
        for word in words:
            setattr(module, word, type(word, (), {}))
        sys.modules[name] = module
    sys.path.insert(0, checkout)
    import ddtree
    return ddtree


class Compiler:
    """The buffers of one sequence, as their generate loop keeps them."""

    def __init__(self, ddtree, budget):
        n = budget + 1
        self.ddtree, self.previous = ddtree, (0, 0)
        self.ids, self.positions = (torch.empty(1, n, dtype=torch.long, device="cuda") for _ in range(2))
        self.mask = torch.zeros(1, 1, n, CONTEXT + n, dtype=torch.bfloat16, device="cuda")
        self.visibility = torch.empty(n, n, dtype=torch.bool, device="cuda")
        self.root = torch.tensor(7, device="cuda")

    def __call__(self, tokens, depths, visibility):
        *_, start, length = self.ddtree.compile_ddtree_tree(self.root, CONTEXT, tokens, depths, visibility, CONTEXT, torch.bfloat16, torch.device("cuda"),
                                                            self.ids, self.positions, self.mask, self.visibility, *self.previous)
        self.previous = (start, length)


@torch.inference_mode()  # as their generate loop
def measure(ddtree, batch, budget, depth):
    logits = [torch.randn(depth, VOCAB, device="cuda", dtype=torch.bfloat16) * 4 for _ in range(batch)]
    compilers = [Compiler(ddtree, budget) for _ in range(batch)]
    whole, trees = [], []
    for _ in range(3 + {1: 31, 8: 11, 64: 5}[batch]):
        torch.cuda.synchronize()
        start, copies = time.perf_counter(), 0.0
        for x, compiler in zip(logits, compilers):
            tokens, depths, _, _, visibility, parts = ddtree.build_ddtree_tree(x, budget)
            compiler(tokens, depths, visibility)
            copies += parts["tree_build_copy"]
        torch.cuda.synchronize()
        whole.append((time.perf_counter() - start) * 1e6)
        trees.append(whole[-1] - copies * 1e6)
    return statistics.median(whole[3:]), statistics.median(trees[3:])


def main():
    ddtree = load(sys.argv[1])
    peers = {}
    for budget, depth in ((16, 7), (64, 15)):
        for batch in (1, 8, 64):
            whole, trees = measure(ddtree, batch, budget, depth)
            key = f"trees B={batch} budget={budget}"
            print(f"{key}: {trees:.0f} us, with top-k and copies {whole:.0f}", flush=True)
            peers[key] = [{"name": "DDTree on the CPU", "us": round(trees, 1)}]
            peers[f"{key}, with top-k and copies"] = [{"name": "DDTree on the CPU", "us": round(whole, 1)}]  # no case of ours: for the pages
    with open(sys.argv[2], "w") as file:
        json.dump({"peers": peers}, file, indent=1)


if __name__ == "__main__":
    main()

"""Further checks: long sequences against transformers, loss by position, acceptance in bf16 and with sampling, exact match on synthetic questions.

usage: extras.py TARGET DRAFT PROMPTS DATA OUT.json
"""

import json
import lzma
import math
import sys
import time
import numpy as np
import torch
import torch.nn.functional as F
import common as C
import spec

torch.backends.cuda.matmul.allow_tf32 = False
torch.set_float32_matmul_precision("highest")
TGT, DRF, PR, DATA, OUT = sys.argv[1:6]
NP = int(sys.argv[6]) if len(sys.argv) > 6 else 64
NT = int(sys.argv[7]) if len(sys.argv) > 7 else 128
dev = "cuda" if torch.cuda.is_available() else "cpu"
m, _ = C.load_target(TGT, dev)
d = C.load_draft(DRF, dev)
ps = json.load(open(PR))
res = {}
t0 = time.time()


def save():
    json.dump(res, open(OUT, "w"))


sets = {k: ps[k][:NP] for k in ("code", "prose", "chat")}
flat = [p for k in sets for p in sets[k]]
for T in (0.7, 1.0):
    ref = None
    for mode in ("chain", 16, 64):
        tab, cmp, ref = spec.acceptance(m, d, sets, NT, [mode], ref=ref, temp=T, seed=11)
        q = cmp[str(mode)]
        res[f"sampling T={T} {mode}"] = dict(
            tau={k: round(v[str(mode)], 4) for k, v in tab.items()},
            equal_to_plain_sampling=q["equal"],
            different=q["different"],
        )
        print(T, mode, res[f"sampling T={T} {mode}"], "%.0fs" % (time.time() - t0), flush=True)
        save()
mb, _ = C.load_target(TGT, dev)
bs = [L.bias.clone() for L in mb.layers if L.moe]
mb.bfloat16()
db = C.load_draft(DRF, dev).bfloat16()
for L, b in zip([L for L in mb.layers if L.moe], bs):
    L.bias = b
gb = spec.greedy(mb, flat, NT, torch.bfloat16)
gf = spec.greedy(m, flat, NT)
same = sum(spec.cut(a) == spec.cut(b) for a, b in zip(gb[0].tolist(), gf[0].tolist()))
res["bf16_greedy_equals_fp32_greedy"] = f"{same}/{len(flat)}"
for mode in ("chain", 8, 16, 64):
    tab, cmp, _ = spec.acceptance(mb, db, sets, NT, [mode], dtype=torch.bfloat16, ref=gb)
    q = cmp[str(mode)]
    res[f"bf16 {mode}"] = dict(
        tau={k: round(v[str(mode)], 4) for k, v in tab.items()},
        equal=q["equal"],
        different=q["different"],
        margins=sorted(q["margin_at_first_difference"]),
    )
    print(
        "bf16",
        mode,
        res[f"bf16 {mode}"]["tau"],
        q["equal"],
        q["different"],
        "largest margins",
        res[f"bf16 {mode}"]["margins"][-5:],
        flush=True,
    )
    save()
res["qa"] = []
for lo in range(0, len(ps["qa"]), 512):
    b = ps["qa"][lo : lo + 512]
    g, _ = spec.greedy(m, [x["ids"] for x in b], 112)
    res["qa"] += [dict(kind=x["kind"], out=spec.cut(y)) for x, y in zip(b, g.tolist())]
print("qa %.0fs" % (time.time() - t0), flush=True)
save()
with torch.no_grad():
    p = f"{DATA}/code.held.u16"
    raw = lzma.open(p + ".xz").read()
    ids = torch.from_numpy(np.frombuffer(raw, dtype=np.uint16).astype(np.int64)).to(dev)
    S = 4096
    n = min(64, (ids.numel() - 1) // S)
    acc = torch.zeros(S, device=dev)
    for j in range(0, n, 8):
        k = min(8, n - j)
        x = ids[j * S : (j + k) * S].view(k, S)
        y = ids[j * S + 1 : (j + k) * S + 1]
        h, _ = m(x, dtype=torch.bfloat16 if dev == "cuda" else torch.float32)
        acc += F.cross_entropy(spec.logits(m, h), y, reduction="none").view(k, S).sum(0)
    acc /= n
    res["held_code_nats_by_position"] = {
        f"{a}-{b}": round(acc[a:b].mean().item(), 4)
        for a, b in ((0, 64), (64, 256), (256, 1024), (1024, 2048), (2048, 3072), (3072, 4096))
    }
    print(res["held_code_nats_by_position"])
    save()
try:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
    import tempfile

    _, T_ = C.load_target(TGT)
    tc = json.load(open(TGT + "/config.json"))["text_config"]
    keep = {
        k: tc[k]
        for k in (
            "vocab_size hidden_size intermediate_size moe_intermediate_size num_hidden_layers num_attention_heads num_key_value_heads n_shared_experts n_routed_experts routed_scaling_factor kv_lora_rank q_lora_rank "
            "qk_rope_head_dim qk_nope_head_dim v_head_dim n_group topk_group num_experts_per_tok first_k_dense_replace norm_topk_prob max_position_embeddings rms_norm_eps tie_word_embeddings"
        ).split()
    }
    hc = DeepseekV3Config(
        **keep,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": tc["rope_theta"],
            **{k: v for k, v in tc["rope_scaling"].items() if k != "type"},
        },
    )
    with tempfile.TemporaryDirectory() as tmp:
        C.st_save(tmp + "/model.safetensors", T_, {"format": "pt"})
        hc.save_pretrained(tmp)
        hf = (
            DeepseekV3ForCausalLM.from_pretrained(
                tmp, dtype=torch.float32, attn_implementation="sdpa"
            )
            .to(dev)
            .eval()
        )
    for L in hf.model.layers:
        for q in (L.self_attn.q_a_layernorm, L.self_attn.kv_a_layernorm):
            q.variance_epsilon = tc["rms_norm_eps"]
    with torch.no_grad():
        x = ids[None, :4000]
        a = hf(x).logits[0].float()
        h, _ = m(x, dtype=torch.float32)
        b = m.logits(h)
        mx = (a - b).abs().amax(-1)
        res["hf_4000_tokens"] = dict(
            max_abs=mx.max().item(),
            median_of_max=mx.median().item(),
            argmax_equal=int((a.argmax(-1) == b.argmax(-1)).sum()),
            rows_over_1e_3=int((mx > 1e-3).sum()),
        )
        print(res["hf_4000_tokens"])
except Exception as e:
    res["hf_4000_tokens"] = "failed " + repr(e)[:300]
    print(res["hf_4000_tokens"])
save()
print("done %.0fs" % (time.time() - t0))

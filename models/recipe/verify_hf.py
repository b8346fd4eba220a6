"""Check the exported target against transformers' DeepseekV3ForCausalLM (fp32, dequantised weights) and the drafter
against a second implementation built from transformers' Qwen3 parts.

usage: verify_hf.py TARGET DRAFT|- PROMPTS OUT.json
"""

import json
import os
import sys
import tempfile
import traceback
import torch
import common as C

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.set_float32_matmul_precision("highest")
TGT, DRF, PR, OUT = sys.argv[1:5]
dev = "cuda" if torch.cuda.is_available() else "cpu"
res = {}
import transformers
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

res["transformers"], res["torch"] = transformers.__version__, torch.__version__
m, T = C.load_target(TGT, dev)
tc = json.load(open(TGT + "/config.json"))["text_config"]
keep = {
    k: tc[k]
    for k in (
        "vocab_size hidden_size intermediate_size moe_intermediate_size num_hidden_layers num_attention_heads num_key_value_heads n_shared_experts n_routed_experts routed_scaling_factor "
        "kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim n_group topk_group num_experts_per_tok first_k_dense_replace norm_topk_prob hidden_act max_position_embeddings "
        "initializer_range rms_norm_eps tie_word_embeddings attention_bias attention_dropout bos_token_id eos_token_id pad_token_id"
    ).split()
}
rp = {
    "rope_type": "yarn",
    "rope_theta": tc["rope_theta"],
    **{k: v for k, v in tc["rope_scaling"].items() if k != "type"},
}
try:
    hc = DeepseekV3Config(**keep, rope_parameters=rp)
except Exception as e:
    print("rope_parameters refused:", e)
    hc = DeepseekV3Config(
        **keep,
        rope_theta=tc["rope_theta"],
        rope_scaling={**tc["rope_scaling"], "rope_type": "yarn"},
    )
hc._attn_implementation = "eager"
hf = DeepseekV3ForCausalLM(hc).float().eval()
sd = hf.state_dict()
filled = set()
for k in sd:
    if k in T:
        sd[k].copy_(T[k])
        filled.add(k)
        continue
    if ".mlp.experts." in k:  # fused expert tensors
        pre = k.split(".experts.")[0] + ".experts."
        w = sd[k]
        E = w.shape[0]
        if "gate_up" in k:
            src = torch.stack(
                [
                    torch.cat((T[f"{pre}{e}.gate_proj.weight"], T[f"{pre}{e}.up_proj.weight"]))
                    for e in range(E)
                ]
            )
        else:
            src = torch.stack([T[f"{pre}{e}.down_proj.weight"] for e in range(E)])
        w.copy_(src if src.shape == w.shape else src.transpose(1, 2))
        filled.add(k)
res["unfilled"] = sorted(set(sd) - filled)
print("not filled:", res["unfilled"][:5], "params", len(sd))
hf.load_state_dict(sd)
hf.to(dev)
inv = hf.model.rotary_emb.inv_freq.double().cpu()
mine = torch.tensor(C.yarn_freqs(tc["qk_rope_head_dim"], tc["rope_theta"], tc["rope_scaling"]))
res["yarn_inv_freq_max_rel"] = ((inv - mine).abs() / mine).max().item()
res["hf_attention_scaling"] = float(hf.model.rotary_emb.attention_scaling)
res["hf_softmax_scale"] = hf.model.layers[0].self_attn.scaling
res["my_softmax_scale"] = m.scale
ps = json.load(open(PR))
flat = [p for k in ("code", "prose", "chat") for p in ps[k][:4]]


def compare(tag):
    d = r = 0.0
    top = n = 0
    for p in flat:
        x = torch.tensor([p], device=dev)
        a = hf(x).logits[0].float()
        h, _ = m(x, dtype=torch.float32)
        b = m.logits(h)
        d = max(d, (a - b).abs().max().item())
        r = max(r, ((a - b).norm() / a.norm()).item())
        top += (a.argmax(-1) == b.argmax(-1)).sum().item()
        n += a.shape[0]
    res[tag] = dict(max_abs=d, max_rel_norm=r, argmax_equal=f"{top}/{n}")
    print(tag, res[tag], flush=True)


with torch.no_grad():
    compare("logits_vs_hf_stock")  # HF leaves eps 1e-6 in q_a/kv_a layernorm
    for L in hf.model.layers:
        for nrm in (L.self_attn.q_a_layernorm, L.self_attn.kv_a_layernorm):
            res["hf_lora_norm_eps"] = nrm.variance_epsilon
            nrm.variance_epsilon = tc["rms_norm_eps"]
    compare("logits_vs_hf_same_eps")
    x = torch.tensor([flat[0] * 12], device=dev)[:, :3000]
    a = hf(x).logits[0].float()
    b = m.logits(m(x, dtype=torch.float32)[0])
    res["long_3000"] = dict(n=x.shape[1], max_abs=(a - b).abs().max().item())
    print("long", res["long_3000"])
    # bf16-rounded dequantised weights (value * scale rounded to bf16), as engines that dequantise to bf16 see them
    m2, _ = C.load_target(TGT, dev)
    for L in m2.layers:
        if L.moe:
            L.wgu.data = L.wgu.data.bfloat16().float()
            L.wd.data = L.wd.data.bfloat16().float()
    dd = 0.0
    for p in flat:
        x = torch.tensor([p], device=dev)
        dd = max(
            dd,
            (m2.logits(m2(x, dtype=torch.float32)[0]) - m.logits(m(x, dtype=torch.float32)[0]))
            .abs()
            .max()
            .item(),
        )
    res["bf16_rounded_dequant_vs_exact_max_abs"] = dd
    d16 = t16 = n16 = 0
    mb, _ = C.load_target(TGT, dev)
    for p in flat:
        x = torch.tensor([p], device=dev)
        a = m.logits(m(x, dtype=torch.float32)[0])
        b = mb.logits(mb(x, dtype=torch.bfloat16)[0]).float()
        d16 = max(d16, (a - b).abs().max().item())
        t16 += (a.argmax(-1) == b.argmax(-1)).sum().item()
        n16 += a.shape[0]
    res["bf16_compute_vs_fp32"] = dict(max_abs=d16, argmax_equal=f"{t16}/{n16}")
try:  # a plain from_pretrained of the dequantised checkpoint
    with tempfile.TemporaryDirectory() as tmp:
        C.st_save(tmp + "/model.safetensors", {k: v for k, v in T.items()}, {"format": "pt"})
        hc.save_pretrained(tmp)
        h2 = (
            DeepseekV3ForCausalLM.from_pretrained(
                tmp, dtype=torch.float32, attn_implementation="eager"
            )
            .to(dev)
            .eval()
        )
        for L in h2.model.layers:
            for nrm in (L.self_attn.q_a_layernorm, L.self_attn.kv_a_layernorm):
                nrm.variance_epsilon = tc["rms_norm_eps"]
        with torch.no_grad():
            x = torch.tensor([flat[1]], device=dev)
            res["from_pretrained_max_abs"] = (h2(x).logits - hf(x).logits).abs().max().item()
except Exception as e:
    res["from_pretrained_max_abs"] = "failed: " + repr(e)[:300]
    traceback.print_exc()
if DRF != "-":
    try:
        from transformers import Qwen3Config
        from transformers.models.qwen3 import modeling_qwen3 as Q

        dj = json.load(open(DRF + "/config.json"))
        W = {k: v.float().to(dev) for k, v in C.st_load(DRF + "/model.safetensors").items()}
        d = C.load_draft(DRF, dev)
        qc = Qwen3Config(
            hidden_size=dj["hidden_size"],
            num_attention_heads=dj["num_attention_heads"],
            num_key_value_heads=dj["num_key_value_heads"],
            head_dim=dj["head_dim"],
            max_position_embeddings=dj["max_position_embeddings"],
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": dj["rope_theta"],
                **{k: v for k, v in dj["rope_scaling"].items() if k not in ("type", "rope_type")},
            },
        )
        rot = Q.Qwen3RotaryEmbedding(qc).to(dev)
        res["drafter_hf_attention_scaling"] = float(rot.attention_scaling)
        nrm = lambda x, w: w * (
            x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + dj["rms_norm_eps"])
        )
        Tn, n = 50, dj["block_size"]
        f = torch.randn(1, Tn, W["fc.weight"].shape[1], device=dev)
        ids = torch.full((1, n), dj["dflash_config"]["mask_token_id"], device=dev)
        ids[0, 0] = 77
        with torch.no_grad():
            ctx = nrm(f @ W["fc.weight"].T, W["hidden_norm.weight"])
            x = m.embed[ids].float()
            cos, sin = rot(x, torch.arange(Tn + n, device=dev)[None])
            for i in range(dj["num_hidden_layers"]):
                p = f"layers.{i}."
                h = nrm(x, W[p + "input_layernorm.weight"])
                kvin = torch.cat((ctx, h), 1)
                sh = lambda z: z.view(1, -1, z.shape[-1] // dj["head_dim"], dj["head_dim"])
                q = nrm(
                    sh(h @ W[p + "self_attn.q_proj.weight"].T), W[p + "self_attn.q_norm.weight"]
                ).transpose(1, 2)
                k = nrm(
                    sh(kvin @ W[p + "self_attn.k_proj.weight"].T), W[p + "self_attn.k_norm.weight"]
                ).transpose(1, 2)
                v = sh(kvin @ W[p + "self_attn.v_proj.weight"].T).transpose(1, 2)
                k = Q.apply_rotary_pos_emb(k, k, cos, sin)[0]
                q = Q.apply_rotary_pos_emb(q, q, cos[:, Tn:], sin[:, Tn:])[0]
                r = dj["num_attention_heads"] // dj["num_key_value_heads"]
                k, v = Q.repeat_kv(k, r), Q.repeat_kv(v, r)
                o = ((q @ k.transpose(-1, -2)) * dj["head_dim"] ** -0.5).softmax(-1) @ v
                x = x + o.transpose(1, 2).reshape(1, n, -1) @ W[p + "self_attn.o_proj.weight"].T
                h = nrm(x, W[p + "post_attention_layernorm.weight"])
                x = (
                    x
                    + (
                        torch.nn.functional.silu(h @ W[p + "mlp.gate_proj.weight"].T)
                        * (h @ W[p + "mlp.up_proj.weight"].T)
                    )
                    @ W[p + "mlp.down_proj.weight"].T
                )
            ref = nrm(x, W["norm.weight"]) @ m.head.T
            kv = [(a[None], b[None]) for a, b in d.context(f[0], torch.arange(Tn, device=dev))]
            y = d.block(
                m.embed[ids],
                torch.arange(Tn, Tn + n, device=dev)[None],
                kv,
                torch.ones(1, n, Tn + n, dtype=torch.bool, device=dev),
            )
            res["drafter_vs_hf_parts_max_abs"] = (y @ m.head.T - ref).abs().max().item()
    except Exception as e:
        res["drafter_vs_hf_parts_max_abs"] = "failed: " + repr(e)[:300]
        traceback.print_exc()
json.dump(res, open(OUT, "w"), indent=1)
print(json.dumps(res, indent=1))

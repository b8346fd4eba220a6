"""Exports the networks under the published tensor names and loads them back, dequantised exactly."""

import json
import os

import torch

from config import BASE, SPECIAL, draft_config, target_config
from drafter import Drafter
from int4 import G, pack, quant, unpack
from target import Target
from tensor_files import st_load, st_save

NAMES = {
    "q_a": "self_attn.q_a_proj.weight",
    "q_b": "self_attn.q_b_proj.weight",
    "kv_a": "self_attn.kv_a_proj_with_mqa.weight",
    "kv_b": "self_attn.kv_b_proj.weight",
    "o": "self_attn.o_proj.weight",
    "qn": "self_attn.q_a_layernorm.weight",
    "kn": "self_attn.kv_a_layernorm.weight",
    "ln1": "input_layernorm.weight",
    "ln2": "post_attention_layernorm.weight",
}
PFX = "language_model."
IGNORE = [
    "lm_head",
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
]


def config_json(c):
    q = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "input_activations": None,
                "output_activations": None,
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": G,
                    "dynamic": False,
                    "observer": "minmax",
                    "observer_kwargs": {},
                    "actorder": None,
                    "block_structure": None,
                },
            }
        },
        "ignore": IGNORE,
    }
    text = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "moe_intermediate_size": c.moe_intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_attention_heads,
        "n_shared_experts": c.n_shared_experts,
        "n_routed_experts": c.n_routed_experts,
        "num_experts_per_tok": c.num_experts_per_tok,
        "routed_scaling_factor": c.routed_scaling_factor,
        "kv_lora_rank": c.kv_lora_rank,
        "q_lora_rank": c.q_lora_rank,
        "qk_rope_head_dim": c.qk_rope_head_dim,
        "qk_nope_head_dim": c.qk_nope_head_dim,
        "v_head_dim": c.v_head_dim,
        "topk_method": "noaux_tc",
        "n_group": 1,
        "topk_group": 1,
        "moe_layer_freq": 1,
        "first_k_dense_replace": c.first_k_dense_replace,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "aux_loss_alpha": 0.001,
        "seq_aux": True,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rms_norm_eps": c.rms_norm_eps,
        "use_cache": True,
        "rope_theta": c.rope_theta,
        "rope_scaling": c.rope_scaling,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": c.max_position_embeddings,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "pretraining_tp": 1,
        "ep_size": 1,
        "bos_token_id": SPECIAL["bos"],
        "eos_token_id": SPECIAL["im_end"],
        "pad_token_id": SPECIAL["pad"],
        "dtype": "bfloat16",
        "quantization_config": q,
    }
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "bos_token_id": SPECIAL["bos"],
        "eos_token_id": SPECIAL["im_end"],
        "pad_token_id": SPECIAL["pad"],
        "ignore_index": -100,
        "media_placeholder_token_id": BASE + 21,
        "use_unified_vision_chunk": True,
        "video_placeholder": "<|kimi_k25_video_placeholder|>",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "text_config": text,
        "quantization_config": q,
    }


def export_target(m, out, limit=14 << 20):
    os.makedirs(out, exist_ok=True)
    c = m.c
    T = {}
    bf = lambda t: t.detach().to(torch.bfloat16).cpu()
    T["model.embed_tokens.weight"], T["lm_head.weight"], T["model.norm.weight"] = (
        bf(m.embed),
        bf(m.head),
        bf(m.norm),
    )
    for i, L in enumerate(m.layers):
        p = f"model.layers.{i}."
        for a, n in NAMES.items():
            T[p + n] = bf(getattr(L, a))
        mp = p + "mlp." + ("shared_experts." if L.moe else "")
        T[mp + "gate_proj.weight"], T[mp + "up_proj.weight"], T[mp + "down_proj.weight"] = (
            bf(L.sg),
            bf(L.su),
            bf(L.sd),
        )
        if not L.moe:
            continue
        T[p + "mlp.gate.weight"] = bf(L.gate)
        T[p + "mlp.gate.e_score_correction_bias"] = L.bias.detach().float().cpu()
        I = c.moe_intermediate_size
        for e in range(c.n_routed_experts):
            for n, w in (
                ("gate_proj", L.wgu[e, :I]),
                ("up_proj", L.wgu[e, I:]),
                ("down_proj", L.wd[e]),
            ):
                v, s = quant(w.detach().float())
                q = f"{p}mlp.experts.{e}.{n}."
                T[q + "weight_packed"] = pack(v.flatten(-2)).cpu()
                T[q + "weight_scale"] = s.squeeze(-1).cpu()
                T[q + "weight_shape"] = torch.tensor(list(w.shape), dtype=torch.int32)
    T = {PFX + k: v for k, v in T.items()}
    order = sorted(
        T,
        key=lambda k: (
            (
                int(k.split("layers.")[1].split(".")[0])
                if "layers." in k
                else (-1 if "embed" in k else 99)
            ),
            k,
        ),
    )
    shards, cur, size = [], {}, 0
    for k in order:
        b = T[k].numel() * T[k].element_size()
        if size + b + 400 * len(cur) > limit:
            shards.append(cur)
            cur, size = {}, 0
        cur[k] = T[k]
        size += b
    shards.append(cur)
    wm = {}
    tot = sum(t.numel() * t.element_size() for t in T.values())
    for i, sh in enumerate(shards):
        fn = f"model-{i+1:05d}-of-{len(shards):05d}.safetensors"
        st_save(f"{out}/{fn}", sh, {"format": "pt"})
        wm.update({k: fn for k in sh})
    json.dump(
        {"metadata": {"total_size": tot}, "weight_map": dict(sorted(wm.items()))},
        open(out + "/model.safetensors.index.json", "w"),
        indent=1,
    )
    json.dump(config_json(c), open(out + "/config.json", "w"), indent=2)
    json.dump(
        {"max_length": c.max_position_embeddings, "eos_token_id": SPECIAL["im_end"]},
        open(out + "/generation_config.json", "w"),
        indent=2,
    )
    return tot


def read_target(path):
    """All tensors of an exported target, without the prefix, expert weights dequantised to fp32 (exact value * scale)."""
    idx = json.load(open(path + "/model.safetensors.index.json"))["weight_map"]
    raw = {}
    for f in sorted(set(idx.values())):
        raw.update(st_load(f"{path}/{f}"))
    out = {}
    for k, t in raw.items():
        n = k[len(PFX) :]
        if n.endswith("weight_packed"):
            s = raw[k.replace("weight_packed", "weight_scale")]
            o, i = raw[k.replace("weight_packed", "weight_shape")].tolist()
            w = unpack(t).float().view(o, i // G, G) * s.float()[..., None]
            out[n.replace(".weight_packed", ".weight")] = w.view(o, i)
        elif not n.endswith(("weight_scale", "weight_shape")):
            out[n] = t.float()
    return out


def load_target(path, dev="cpu"):
    T = read_target(path)
    t = json.load(open(path + "/config.json"))["text_config"]
    c = target_config(**{k: t[k] for k in vars(target_config()) if k in t})
    m = Target(c)

    def put(p, v):
        assert p.shape == v.shape, (p.shape, v.shape)
        p.data.copy_(v)

    put(m.embed, T["model.embed_tokens.weight"])
    put(m.head, T["lm_head.weight"])
    put(m.norm, T["model.norm.weight"])
    for i, L in enumerate(m.layers):
        p = f"model.layers.{i}."
        for a, n in NAMES.items():
            put(getattr(L, a), T[p + n])
        mp = p + "mlp." + ("shared_experts." if L.moe else "")
        put(L.sg, T[mp + "gate_proj.weight"])
        put(L.su, T[mp + "up_proj.weight"])
        put(L.sd, T[mp + "down_proj.weight"])
        if L.moe:
            put(L.gate, T[p + "mlp.gate.weight"])
            L.bias.copy_(T[p + "mlp.gate.e_score_correction_bias"])
            E = range(c.n_routed_experts)
            q = p + "mlp.experts.%d.%s.weight"
            put(
                L.wgu,
                torch.stack(
                    [torch.cat((T[q % (e, "gate_proj")], T[q % (e, "up_proj")])) for e in E]
                ),
            )
            put(L.wd, torch.stack([T[q % (e, "down_proj")] for e in E]))
    for p in m.parameters():
        p.requires_grad_(False)
    return m.to(dev), T


DN = {
    "ln1": "input_layernorm.weight",
    "ln2": "post_attention_layernorm.weight",
    "qn": "self_attn.q_norm.weight",
    "kn": "self_attn.k_norm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "g": "mlp.gate_proj.weight",
    "u": "mlp.up_proj.weight",
    "d": "mlp.down_proj.weight",
}


def draft_config_json(c):
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        "block_size": c.block_size,
        "dflash_config": {"mask_token_id": c.mask_token_id, "target_layer_ids": c.target_layer_ids},
        "num_target_layers": c.num_target_layers,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab_size,
        "rms_norm_eps": c.rms_norm_eps,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "max_position_embeddings": c.max_position_embeddings,
        "rope_theta": c.rope_theta,
        "rope_scaling": {"rope_type": "yarn", **{k: v for k, v in c.rope_scaling.items()}},
        "layer_types": ["full_attention"] * c.num_hidden_layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "dtype": "bfloat16",
    }


def export_draft(d, out):
    os.makedirs(out, exist_ok=True)
    bf = lambda t: t.detach().to(torch.bfloat16).cpu()
    T = {"fc.weight": bf(d.fc), "hidden_norm.weight": bf(d.hidden_norm), "norm.weight": bf(d.norm)}
    for i, L in enumerate(d.layers):
        for a, n in DN.items():
            T[f"layers.{i}.{n}"] = bf(getattr(L, a))
    st_save(out + "/model.safetensors", T, {"format": "pt"})
    json.dump(draft_config_json(d.c), open(out + "/config.json", "w"), indent=2)


def load_draft(path, dev="cpu"):
    j = json.load(open(path + "/config.json"))
    T = st_load(path + "/model.safetensors")
    c = draft_config(
        **{k: j[k] for k in vars(draft_config()) if k in j},
        mask_token_id=j["dflash_config"]["mask_token_id"],
        target_layer_ids=j["dflash_config"]["target_layer_ids"],
    )
    d = Drafter(c)
    d.fc.data.copy_(T["fc.weight"])
    d.hidden_norm.data.copy_(T["hidden_norm.weight"])
    d.norm.data.copy_(T["norm.weight"])
    for i, L in enumerate(d.layers):
        for a, n in DN.items():
            getattr(L, a).data.copy_(T[f"layers.{i}.{n}"])
    for p in d.parameters():
        p.requires_grad_(False)
    return d.to(dev)

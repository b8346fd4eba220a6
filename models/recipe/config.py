"""Sizes, special tokens and rotary settings of the two networks."""

from types import SimpleNamespace as NS

BASE = 5120  # base BPE ranks; 256 special slots follow
SPECIAL = {
    "bos": BASE,
    "eos": BASE + 1,
    "im_end": BASE + 2,
    "im_user": BASE + 3,
    "im_assistant": BASE + 4,
    "eot": BASE + 9,
    "im_system": BASE + 10,
    "im_middle": BASE + 17,
    "think": BASE + 22,
    "think_end": BASE + 23,
    "unk": BASE + 254,
    "pad": BASE + 255,
}
MASK_ID = BASE + 254  # same offset as 163838 in the real tokenizer
STOP = (BASE + 1, BASE + 2, BASE + 9)


def target_config(**over):
    c = dict(
        vocab_size=BASE + 256,
        hidden_size=384,
        num_hidden_layers=6,
        first_k_dense_replace=1,
        intermediate_size=1024,
        num_attention_heads=8,
        q_lora_rank=192,
        kv_lora_rank=128,
        qk_nope_head_dim=32,
        qk_rope_head_dim=32,
        v_head_dim=32,
        n_routed_experts=32,
        num_experts_per_tok=4,
        n_shared_experts=1,
        moe_intermediate_size=128,
        routed_scaling_factor=2.827,
        rms_norm_eps=1e-5,
        rope_theta=50000.0,
        max_position_embeddings=4096,
        rope_scaling=dict(
            type="yarn",
            factor=4.0,
            original_max_position_embeddings=1024,
            beta_fast=32.0,
            beta_slow=1.0,
            mscale=1.0,
            mscale_all_dim=1.0,
        ),
    )
    c.update(over)
    return NS(**c)


def draft_config(**over):
    c = dict(
        vocab_size=BASE + 256,
        hidden_size=384,
        num_hidden_layers=3,
        intermediate_size=640,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=50000.0,
        block_size=8,
        mask_token_id=MASK_ID,
        target_layer_ids=[1, 2, 3, 4],
        num_target_layers=6,
        max_position_embeddings=4096,
        rope_scaling=dict(
            type="yarn",
            factor=4.0,
            original_max_position_embeddings=1024,
            beta_fast=32.0,
            beta_slow=1.0,
            mscale=1.0,
            mscale_all_dim=1.0,
        ),
    )
    c.update(over)
    return NS(**c)

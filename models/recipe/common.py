"""One name for the parts that the scripts share (import common as C)."""

from types import SimpleNamespace as NS

from config import BASE, MASK_ID, SPECIAL, STOP, draft_config, target_config
from drafter import DFN, Drafter, d_ctx_t, d_kv_t, d_post_t, d_pre_t
from int4 import FQ, qat
from layers import lin, rms, yarn_freqs
from muon import Muon
from published import export_draft, export_target, load_draft, load_target
from target import EAGER, FN, Target, post_dense_t, post_moe_t, pre_attn_t
from tensor_files import st_load, st_save

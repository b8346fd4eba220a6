#include "backend/cuda/kernel_args.h"

namespace coppice {

kernels::TreeArrays tree_arrays(const TreeBuffers& trees) {
  return {.tokens = int32s(trees.tokens),
          .parents = int32s(trees.parents),
          .depths = int32s(trees.depths),
          .scores = floats(trees.scores),
          .counts = int32s(trees.counts),
          .max_nodes = to_int(trees.tokens.shape(1)) - 1};
}

kernels::SampleRowsParams sample_params(const SampleRowsArgs& args) {
  const SamplingBuffers& s = args.sampling;
  return {.logits = floats(args.logits),
          .row_stride = args.logits.row_stride(),
          .positions = int32s(args.positions),
          .seq_of_row = int32s(args.seq_of_row),
          .node_of_row = int32s(args.node_of_row),
          .allowed = reinterpret_cast<const std::uint32_t*>(int32s(args.allowed)),
          .trees = tree_arrays(args.trees),
          .temperature = floats(s.temperature),
          .top_k = int32s(s.top_k),
          .top_p = floats(s.top_p),
          .min_p = floats(s.min_p),
          .repetition_penalty = floats(s.repetition_penalty),
          .presence_penalty = floats(s.presence_penalty),
          .frequency_penalty = floats(s.frequency_penalty),
          .seed = s.seed.data<std::int64_t>(),
          .choice_index = int32s(s.choice_index),
          .prompt_len = int32s(s.prompt_len),
          .history = int32s(s.history),
          .history_len = int32s(s.history_len),
          .bias_ids = int32s(s.bias_ids),
          .bias_values = floats(s.bias_values),
          .stop_ids = int32s(s.stop_ids),
          .min_tokens = int32s(s.min_tokens),
          .history_stride = to_int(s.history.row_stride()),
          .max_bias = to_int(s.bias_ids.shape(1)),
          .max_stop_ids = to_int(s.stop_ids.shape(1)),
          .num_seqs = to_int(s.temperature.shape(0)),
          .num_rows = to_int(args.logits.shape(0)),
          .vocab_size = to_int(args.logits.shape(1)),
          .choices = int32s(args.choices),
          .finite = int32s(args.finite)};
}

kernels::AcceptPathParams accept_params(const AcceptPathArgs& args) {
  const SamplingBuffers& s = args.sampling;
  return {.trees = tree_arrays(args.trees),
          .row_offsets = int32s(args.row_offsets),
          .choices = int32s(args.choices),
          .finite = int32s(args.finite),
          .slots = int32s(args.slots),
          .block_tables = int32s(args.block_tables),
          .prompt_len = int32s(s.prompt_len),
          .max_tokens = int32s(s.max_tokens),
          .stop_ids = int32s(s.stop_ids),
          .history = int32s(s.history),
          .history_len = int32s(s.history_len),
          .context_len = int32s(args.context_len),
          .anchors = int32s(args.anchors),
          .accepted_rows = int32s(args.accepted_rows),
          .emitted = int32s(args.emitted),
          .num_emitted = int32s(args.num_emitted),
          .finish_reason = int32s(args.finish_reason),
          .move_src = int32s(args.move_src),
          .move_dst = int32s(args.move_dst),
          .feature_rows = int32s(args.feature_rows),
          .feature_positions = int32s(args.feature_positions),
          .feature_slots = int32s(args.feature_slots),
          .num_seqs = to_int(args.anchors.shape(0)),
          .max_path = to_int(args.emitted.shape(1)),
          .max_blocks = to_int(args.block_tables.shape(1)),
          .max_stop_ids = to_int(s.stop_ids.shape(1)),
          .history_stride = to_int(s.history.row_stride())};
}

kernels::RmsNormParams norm_params(const AddRmsNormArgs& args) {
  return {.x = args.residual.raw(),
          .delta = args.delta.raw(),
          .residual = args.residual.raw(),
          .weight = floats(args.weight),
          .out = args.out.raw(),
          .x_row_stride = args.residual.row_stride(),
          .delta_row_stride = args.delta.row_stride(),
          .residual_row_stride = args.residual.row_stride(),
          .out_row_stride = args.out.row_stride(),
          .num_rows = to_int(args.out.shape(0)),
          .hidden_size = to_int(args.out.shape(1)),
          .eps = args.eps};
}

}  // namespace coppice

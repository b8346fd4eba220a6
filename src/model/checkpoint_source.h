// The tensors of a network in safetensors shards or a GGUF file.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "io/checkpoint.h"
#include "model/weight_source.h"

namespace coppice {

struct CheckpointNaming {
  // From the published name ("model.layers.3.mlp.gate.weight") to the one in the file.
  std::function<std::string(const std::string&)> name_in_file;
  // Prefixes of tensors in the file that the network rightly does not use.
  std::vector<std::string> ignored_prefixes;
  // Other unused tensors: refused (they would change the result), or reported in the log.
  bool refuse_unused = false;
};

// `prefix` stands before every name.
CheckpointNaming safetensors_naming(const std::string& prefix);

class CheckpointSource : public WeightSource {
 public:
  // The checkpoint must outlive the source.
  CheckpointSource(const Checkpoint& checkpoint, CheckpointNaming naming);

  std::size_t check(const WeightSpec& spec) override;
  void check_unused() override;
  bool has(const std::string& name) const override;
  HostMatrix matrix(const WeightSpec& spec) override;
  std::vector<float> vector(const WeightSpec& spec) override;
  void release() override;

 protected:
  // Notes that the tensor is used.
  const TensorInfo& find(const std::string& name);
  std::span<const std::byte> bytes_of(const TensorInfo& info);  // until release()
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  HostMatrix describe_matrix(const WeightSpec& spec);
  HostMatrix describe_int4(const WeightSpec& spec);
  HostMatrix describe_f8(const WeightSpec& spec, const TensorInfo& info);
  void check_int4_scales(const WeightSpec& spec);
  const std::byte* data_of(const TensorInfo& info);

  const Checkpoint& checkpoint_;
  CheckpointNaming naming_;
  std::unordered_set<const TensorInfo*> used_;
  std::vector<const TensorInfo*> open_;  // handed out since the last release
};

}  // namespace coppice

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ddprun/group/process_group.h>
#include <ddprun/sharding/flat_parameter.h>

namespace torch::nn {
class Module;
}

namespace ddprun::ddp {

struct ShardUnits {
  std::vector<FlatParameter> units;
  std::vector<std::vector<std::string>> names;  ///< each unit's parameters; of a shared one the first name
};

/// Divides a module into units, the same on every rank, and shards them. Every rank calls it.
/// throws  as FullyShardedDataParallel's constructor
ShardUnits make_units(torch::nn::Module& module, const ProcessGroup& group, std::int64_t unit_bytes,
                      const std::vector<torch::nn::Module*>& asked_units);

/// The named tensors in the parameters' order; empty if by_name has none of them.
/// throws  std::invalid_argument if it has only some, or one differs in shape from its parameter
std::vector<at::Tensor> tensors_by_name(const std::vector<at::Tensor>& parameters,
                                        const std::vector<std::string>& names,
                                        const std::map<std::string, at::Tensor>& by_name);

}  // namespace ddprun::ddp

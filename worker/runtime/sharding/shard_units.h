#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/group/process_group.h>
#include <ddprun/sharding/flat_parameter.h>

namespace torch::nn {
class Module;
}

namespace ddprun::ddp {

/// Decides which unit a parameter goes into.
struct ParameterFacts {
  std::string name;
  std::string module;      ///< the path of the module that owns it
  std::string kind;        ///< a unit holds one kind: type, device, requires_grad
  std::int64_t numel = 0;  ///< elements
  std::int64_t element_bytes = 4;
  std::optional<std::size_t> asked_unit = {};  ///< the number of the requested unit
};

/// Parameters laid out in a flat tensor that is divided evenly among the ranks.
struct PlannedUnit {
  struct Part {
    std::size_t parameter;  ///< its index among the facts
    std::int64_t offset;    ///< its first element in the flat tensor
  };
  std::string name;  ///< its parameters, for messages
  std::vector<Part> parts;
  std::int64_t numel = 0;        ///< elements of the flat tensor: world size * shard_numel
  std::int64_t shard_numel = 0;  ///< elements on each rank
};

/// Packs modules, in order, into units of at most unit_bytes. A module's own parameters stay together, even
/// beyond that size, and so do requested units. Every parameter starts at a multiple of 64 bytes, like a
/// separate tensor, so that kernels take the same paths.
std::vector<PlannedUnit> plan_units(const std::vector<ParameterFacts>& parameters, std::int64_t unit_bytes,
                                    int world_size);

/// Divides a module into units, the same on every rank, and shards them. Every rank calls it.
/// throws  as FullyShardedDataParallel's constructor
std::vector<FlatParameter> make_units(torch::nn::Module& module, const ProcessGroup& group,
                                      const FullyShardedDataParallel::Options& options);

}  // namespace ddprun::ddp

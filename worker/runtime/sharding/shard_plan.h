#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::ddp {

/// What decides in which unit a parameter goes.
struct ParameterFacts {
  std::string name;
  std::string module;      ///< the path of the module that owns it
  std::string kind;        ///< one unit holds one kind: type, device, wants a gradient or not
  std::int64_t numel = 0;  ///< elements
  std::int64_t element_bytes = 4;
  std::optional<std::size_t> asked_unit = {};  ///< the unit the user asked for, by number
};

/// Parameters laid one after the other in a flat tensor that is cut evenly over the ranks.
struct PlannedUnit {
  struct Part {
    std::size_t parameter;  ///< its place among the facts
    std::int64_t offset;    ///< its first element in the flat tensor
  };
  std::string name;  ///< its parameters, for messages
  std::vector<Part> parts;
  std::int64_t numel = 0;        ///< elements of the flat tensor: world size * shard_numel
  std::int64_t shard_numel = 0;  ///< elements on each rank
};

/// Packs modules, in their order, into units of at most unit_bytes. A module's own parameters stay together,
/// so one module may exceed it; a unit that the user asked for is not cut. Every parameter starts at a
/// multiple of 64 bytes, as in a tensor of its own, so that kernels take the same paths.
std::vector<PlannedUnit> plan_units(const std::vector<ParameterFacts>& parameters, std::int64_t unit_bytes,
                                    int world_size);

}  // namespace ddprun::ddp

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <ddprun/group/process_group.h>
#include <ddprun/sharding/fully_sharded.h>

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

/// A unit of FullyShardedDataParallel: some of a module's parameters, as views of one flat tensor whose
/// memory exists only between gather and free, and this rank's shard of it, which always exists. The
/// parameters keep their storage, so that tensors saved by autograd find the data again.
///
/// With one rank alone the shard is the flat tensor, and is never freed.
class FlatParameter {
 public:
  /// Takes rank 0's values, then frees the parameters.
  /// parameters  the plan's, in its order
  /// names       their names; a shared parameter's first name
  /// tag         different for each unit, the same on every rank
  FlatParameter(const PlannedUnit& plan, std::vector<at::Tensor> parameters, std::vector<std::string> names,
                const ProcessGroup& group, int tag,
                const FullyShardedDataParallel::MixedPrecision& precision = {},
                const std::function<void(const std::string&, at::Tensor&)>& initialise = {});

  const std::string& name() const { return name_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// [shard_numel], for the optimizer: a leaf that requires a gradient if the parameters do.
  const at::Tensor& shard() const { return shard_; }
  std::vector<FullyShardedDataParallel::Unit::Parameter> places() const;
  const c10::StorageImpl* storage() const { return flat_.storage().unsafeGetStorageImpl(); }
  bool is_sharded() const { return group_->communicates(); }
  bool is_gathered() const { return gathered_; }

  void start_gather();  ///< does nothing if already started or done
  void finish_gather();
  /// Both, in the shard's type, until free().
  void gather_whole();
  /// Drops the gathered values; first saves this rank's part if keep is true or a parameter was changed in
  /// place.
  void free(bool keep = false);
  /// Any later use of a parameter throws this error.
  void fail(const std::string& message);

  /// Takes the gradient that has arrived at a parameter, scaled by 1 / world size. True once all parameters'
  /// gradients have arrived in this backward.
  bool take_gradient(std::size_t parameter);
  bool has_gradients() const { return flat_gradient_.defined(); }
  void end_backward() { arrived_.assign(parameters_.size(), false); }
  void drop_gradients();
  /// Sums the flat gradient over the ranks; finish_reduce() adds this rank's part to the shard's gradient.
  void start_reduce();
  void finish_reduce();
  /// Call it instead of finish_reduce() after an error: the other ranks' messages still arrive.
  void abandon_reduce() { std::exchange(reduce_scatter_, {})(); }

  /// Gathers a tensor of the shard's shape on every rank, of any type: one contiguous tensor per parameter.
  std::map<std::string, at::Tensor> gather(const at::Tensor& shard) const;
  /// The inverse: this rank's shard of these tensors; undefined if none belongs to this unit.
  /// throws  std::invalid_argument if only some do, or one differs in shape from its parameter
  at::Tensor shard_of(const std::map<std::string, at::Tensor>& by_name) const;

 private:
  at::Tensor view_of(const at::Tensor& flat, std::size_t parameter) const;
  at::Tensor own_part(const at::Tensor& flat) const;
  std::int64_t versions() const;
  void set_memory(at::DataPtr&& data, std::size_t bytes);
  void zero_gaps();

  std::string name_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  std::vector<std::int64_t> offsets_;
  const ProcessGroup* group_;
  int tag_;
  at::Tensor flat_, shard_;
  std::vector<at::Tensor> views_;  ///< of flat_, the parameters' data except for ...
  at::Tensor whole_;               ///< ... gather_whole() in another type
  at::ScalarType reduce_dtype_;
  bool gathered_ = false;
  std::int64_t versions_ = 0;
  std::function<at::Tensor()> all_gather_;  ///< waits for the full tensor; null: not started
  at::Tensor flat_gradient_;
  std::vector<bool> arrived_;                   ///< in this backward
  std::vector<bool> filled_;                    ///< in flat_gradient_
  std::function<at::Tensor()> reduce_scatter_;  ///< waits for this rank's part of the sum
};

/// Divides a module into units, the same on every rank, and shards them. Every rank calls it.
/// throws  as FullyShardedDataParallel's constructor
std::vector<FlatParameter> make_units(torch::nn::Module& module, const ProcessGroup& group,
                                      const FullyShardedDataParallel::Options& options);

}  // namespace ddprun::ddp

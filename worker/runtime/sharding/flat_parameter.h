#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ddprun/group/process_group.h>
#include <ddprun/sharding/fully_sharded.h>

namespace c10d {
class Work;
}

namespace ddprun::ddp {

struct PlannedUnit;

// CPU tensors travel in point-to-point messages between all ranks: Gloo's all-gather copies through a second
// buffer of the full size, and its reduce-scatter is an all-reduce of a copy. Messages carry a tag, so ranks
// that exchange different tensors wait instead of mixing them up. Other tensors use the backend's
// collectives.

/// An all-gather in progress.
class AllGather {
 public:
  AllGather() = default;
  /// full   1-D, world size * shard's elements; rank r's shard is the r-th part
  /// shard  1-D, the same size on every rank; must not change until wait()
  AllGather(const ProcessGroup& group, at::Tensor full, at::Tensor shard, int tag);
  /// The full tensor.
  at::Tensor wait();

 private:
  at::Tensor full_, shard_;
  c10::intrusive_ptr<c10d::Work> work_;
};

/// A reduce-scatter (sum) in progress.
class ReduceScatter {
 public:
  ReduceScatter() = default;
  /// full  1-D, the same size on every rank, a multiple of the world size; must not change until wait()
  ReduceScatter(const ProcessGroup& group, at::Tensor full, int tag);
  /// This rank's part of the sum, in a new tensor. Reproducible: adds in rank order.
  at::Tensor wait();

 private:
  int rank_ = 0;
  at::Tensor full_, received_;
  c10::intrusive_ptr<c10d::Work> work_;
};

/// A unit of FullyShardedDataParallel: some of a module's parameters, as views of one flat tensor whose
/// memory exists only between gather and free, and this rank's shard of it, which always exists. The
/// parameters keep their storage, so that tensors saved by autograd find the data again.
///
/// With one rank the shard is the flat tensor, and is never freed.
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
  bool is_sharded() const { return group_->size() > 1; }
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
  void abandon_reduce() { reduce_scatter_.wait(); }

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
  bool gathering_ = false, gathered_ = false;
  std::int64_t versions_ = 0;
  AllGather all_gather_;
  at::Tensor flat_gradient_;
  std::vector<bool> arrived_;  ///< in this backward
  std::vector<bool> filled_;   ///< in flat_gradient_
  ReduceScatter reduce_scatter_;
};

}  // namespace ddprun::ddp

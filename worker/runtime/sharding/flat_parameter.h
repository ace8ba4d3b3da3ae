#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include <ddprun/group/process_group.h>
#include <ddprun/sharding/shard_exchange.h>
#include <ddprun/sharding/shard_plan.h>

namespace ddprun::ddp {

/// A unit of FullyShardedDataParallel: some parameters of a module, as views of one flat tensor that is there
/// only between gather and free, and this rank's shard of it, which always is. The parameters stay the same
/// tensors with the same storage: only the storage's memory comes and goes, so that whatever autograd has
/// saved of them finds the data again.
///
/// In a group of one the shard is the flat tensor, and nothing comes or goes.
class FlatParameter {
 public:
  /// Takes rank 0's values; on return the parameters are freed. parameters: those of the plan, in its order.
  /// tag: another for each unit, the same on every rank.
  FlatParameter(const PlannedUnit& plan, std::vector<at::Tensor> parameters, const ProcessGroup& group,
                int tag);

  const std::string& name() const { return name_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// float [shard_numel], what the optimizer works on; a leaf that wants a gradient if the parameters do.
  const at::Tensor& shard() const { return shard_; }
  const c10::StorageImpl* storage() const { return flat_.storage().unsafeGetStorageImpl(); }
  bool is_sharded() const { return group_->size() > 1; }
  bool is_gathered() const { return gathered_; }

  void start_gather();  ///< does nothing if started or done
  void finish_gather();
  /// Drops the gathered values; first keeps this rank's part of them if a parameter was changed in place, or
  /// if keep is true.
  void free(bool keep = false);
  /// For good: whoever uses a parameter from now on gets this error.
  void fail(const std::string& message);

  /// Takes over the gradient that has arrived at a parameter, scaled by 1 / world size.
  /// returns  true if every parameter's has arrived in this backward
  bool take_gradient(std::size_t parameter);
  bool has_gradients() const { return flat_gradient_.defined(); }
  void end_backward() { arrived_.assign(parameters_.size(), false); }
  void drop_gradients();
  /// Sums the flat gradient over the ranks; finish_reduce() adds this rank's part to the shard's gradient.
  void start_reduce();
  void finish_reduce();
  void abandon_reduce();  ///< in its place after an error

  /// The parameters' tensors within a full flat tensor of any type, as contiguous tensors of their own.
  std::vector<at::Tensor> unpack(const at::Tensor& full) const;
  /// The inverse: this rank's shard of a flat tensor made of one tensor for each parameter.
  at::Tensor pack_shard(const std::vector<at::Tensor>& tensors) const;
  /// A tensor of the shard's shape on every rank, gathered: [world size * shard_numel].
  at::Tensor gather(const at::Tensor& shard) const;

 private:
  at::Tensor view_of(const at::Tensor& flat, std::size_t parameter) const;
  at::Tensor own_part(const at::Tensor& flat) const;
  std::int64_t versions() const;
  void set_memory(at::DataPtr&& data, std::size_t bytes);
  void zero_gaps();

  std::string name_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::int64_t> offsets_;
  const ProcessGroup* group_;
  int tag_;
  at::Tensor flat_, shard_;
  bool gathering_ = false, gathered_ = false;
  std::int64_t versions_ = 0;
  AllGather all_gather_;
  at::Tensor flat_gradient_;
  std::vector<bool> arrived_;  ///< in this backward
  std::vector<bool> filled_;   ///< in flat_gradient_
  ReduceScatter reduce_scatter_;
  at::Tensor reduced_;  ///< in its place in a group of one
};

}  // namespace ddprun::ddp

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>

#include <ddprun/ddp/backward_end.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/pending_sum.h>

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace ddprun::ddp {

/// What a DistributedDataParallel holds. The reducer itself is used in distributed_data_parallel.cpp only; in
/// a world of one there is none.
struct DistributedDataParallel::Engine {
  Engine(torch::nn::Module& module, const ProcessGroup& group, const Options& options);

  void before_forward(bool synchronize, std::optional<std::int64_t> samples);
  void after_forward(bool synchronize, const OutputVisitor& visit_output);
  void start_static_graph();
  void rebuild_buckets();
  void set_join(const std::optional<JoinOptions>& options);
  at::Device device() const { return parameters[0].device(); }
  void announce_step(double reduces, double training, double samples);
  double gradient_scale();
  void broadcast_buffers(int source);
  void throw_if_any_ended(bool this_one);
  void reduce_zeros();
  int common_rank(bool candidate) const;
  bool finds_unused() const { return options.find_unused_parameters && !options.static_graph; }

  torch::nn::Module& module;
  const ProcessGroup group;
  const Options options;
  std::vector<at::Tensor> parameters;  // those that the reducer has
  std::vector<std::string> names;
  bool has_sparse_gradients = false;

  bool has_comm_hook = false, has_run_forward = false, has_rebuilt_buckets = false;
  bool broadcasts_buffers = false, broadcasts_buffers_next = false;
  std::int64_t iterations = 0;  // the reducer's own count
  std::optional<double> samples;
  std::optional<PendingSum> samples_of_all;  // the last of these numbers; in a join others come before
  std::optional<PendingSum> active_ranks;    // in a join
  std::optional<JoinOptions> join;

  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;      // holds the reducer; goes first
  std::optional<BackwardEnd> reduce_at_end;  // of the first backward of a static graph
};

}  // namespace ddprun::ddp

#include <ddprun/ddp/join.h>

#include <stdexcept>
#include <string>

#include <torch/types.h>

#include <ddprun/common/logging.h>
#include <ddprun/ddp/engine.h>
#include <ddprun/ddp/managed_state.h>
#include <ddprun/flight/describe_ranks.h>
#include <ddprun/group/collectives.h>

// Every collective of a rank's forward and backward in a join has its partner in shadow_step(), in the same
// order: announce_step(), the buckets' new order, buffers, gradients.

namespace ddprun::ddp {

Join::Join(DistributedDataParallel& ddp, const JoinOptions& options) : ddp_(ddp) { ddp_.begin_join(options); }

Join::~Join() {
  if (!ended_) ddp_.end_join();
}

void Join::finish() {
  if (ended_) throw std::invalid_argument("Join::finish: expected to be called once");
  constexpr int kManySteps = 1000;
  int steps = 0;
  while (ddp_.shadow_step()) {
    if (++steps == kManySteps)
      log_warning("this rank has had no input for " + std::to_string(kManySteps) +
                  " steps of the others: the inputs are divided very unevenly");
  }
  ddp_.take_final_state(/*made_most_steps=*/steps == 0);
  ddp_.end_join();
  ended_ = true;
}

void DistributedDataParallel::begin_join(const JoinOptions& options) {
  if (engine_->join) throw std::invalid_argument("join: expected to be called once at a time");
  if (engine_->has_sparse_gradients || engine_->options.skip_all_reduce_unused_parameters)
    throw std::invalid_argument(
        "join: not possible with sparse gradients, nor with skip_all_reduce_unused_parameters");
  if (engine_->reducer) engine_->set_join(options);
}

void DistributedDataParallel::end_join() {
  if (engine_->join) engine_->set_join(std::nullopt);
}

void DistributedDataParallel::Engine::announce_step(double reduces, double training, double samples_here) {
  active_ranks.emplace(group, device(), std::vector<double>{1});
  samples_of_all.emplace(group, device(), std::vector<double>{reduces, training, samples_here});
  if (join->throw_on_early_termination) throw_if_any_ended(false);
}

bool DistributedDataParallel::shadow_step() {
  Engine& engine = *engine_;
  if (!engine.reducer) return false;
  if (engine.options.static_graph && engine.iterations == 0)
    throw std::invalid_argument("join: with static_graph every rank needs input for one step at least");
  if (PendingSum(engine.group, engine.device(), {0}).wait()[0] == 0) return false;
  const auto step = PendingSum(engine.group, engine.device(), {0, 0, 0}).wait();
  const bool reduces = step[0] != 0, training = step[1] != 0;
  if (engine.join->throw_on_early_termination) engine.throw_if_any_ended(true);
  if (training) engine.rebuild_buckets();
  if (engine.broadcasts_buffers_next) engine.broadcast_buffers(engine.common_rank(false));
  engine.broadcasts_buffers_next = reduces && engine.broadcasts_buffers;
  if (reduces) engine.reduce_zeros();
  return true;
}

void DistributedDataParallel::Engine::throw_if_any_ended(bool this_one) {
  std::vector<double> ended(static_cast<std::size_t>(group.size()), 0);
  ended[static_cast<std::size_t>(group.rank())] = this_one ? 1 : 0;
  ended = PendingSum(group, device(), ended).wait();
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < ended.size(); ++rank)
    if (ended[rank] != 0) ranks.push_back(static_cast<int>(rank));
  if (!ranks.empty())
    throw UnevenInputs("no more input on " + describe_ranks(ranks) + ", while other ranks have some");
}

/// The highest of the ranks that are candidates.
int DistributedDataParallel::Engine::common_rank(bool candidate) const {
  return static_cast<int>(all_reduce_max(group, device(), candidate ? group.rank() : -1));
}

void DistributedDataParallel::take_final_state(bool made_most_steps) {
  const Engine& engine = *engine_;
  if (!engine.reducer) return;
  const int source = engine.common_rank(made_most_steps);
  torch::NoGradGuard no_grad;
  broadcast_from(
      engine.group,
      managed_state(engine.module, engine.options.ignore).tensors(engine.options.broadcast_buffers), source);
}

}  // namespace ddprun::ddp

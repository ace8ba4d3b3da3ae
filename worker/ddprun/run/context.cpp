#include <ddprun/run/context.h>
#include <ddprun/run/recovery.h>

#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/ddp/checks.h>
#include <ddprun/group/collectives.h>
#include <ddprun/run/run_worker.h>

namespace ddprun {

Context::Context(const WorkerEnv& env, ddp::ProcessGroup group, Recovery* recovery)
    : env_(env),
      group_(std::move(group)),
      heartbeat_(env.heartbeat_fd),
      status_(env.status_fd),
      recovery_(recovery) {}

at::Tensor Context::all_reduce(const at::Tensor& tensor, Op op) const {
  const at::NoGradGuard no_grad;
  if (op == Op::kMean && !tensor.is_floating_point() && !tensor.is_complex())
    throw std::invalid_argument("all_reduce: expected a floating-point tensor for the mean, got " +
                                std::string(c10::toString(tensor.scalar_type())));
  std::vector<at::Tensor> result = {tensor.detach().clone(at::MemoryFormat::Contiguous)};
  if (world_size() == 1) return result[0];
  c10d::AllreduceOptions options;  // the sum, also for the mean: Gloo has no AVG
  if (op == Op::kMax) options.reduceOp = c10d::ReduceOp::MAX;
  if (op == Op::kMin) options.reduceOp = c10d::ReduceOp::MIN;
  group_.handle()->allreduce(result, options)->wait();
  return op == Op::kMean ? result[0].div_(world_size()) : result[0];
}

double Context::all_reduce(double value, Op op) const {
  return all_reduce(at::scalar_tensor(value, at::kDouble), op).item<double>();
}

at::Tensor Context::broadcast(const at::Tensor& tensor, int source) const {
  auto result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  if (world_size() > 1) ddp::broadcast_from(group_, {result}, source);
  return result;
}

std::vector<at::Tensor> Context::all_gather(const at::Tensor& tensor) const {
  std::vector<at::Tensor> input = {tensor.detach().clone(at::MemoryFormat::Contiguous)};
  if (world_size() == 1) return input;
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < world_size(); ++rank) outputs[0].push_back(at::empty_like(input[0]));
  group_.handle()->allgather(outputs, input)->wait();
  return outputs[0];
}

std::vector<at::Tensor> Context::gather(const at::Tensor& tensor, int destination) const {
  auto all = all_gather(tensor);
  return rank() == destination ? all : std::vector<at::Tensor>();
}

std::optional<std::int64_t> Context::begin_epoch(std::int64_t number) const {
  if (recovery_ == nullptr || !recovery_->round.commit) return 0;
  auto& round = recovery_->round;
  if (number != round.next_epoch) {  // the training's last batch is over
    round.batch.reset();
    return std::nullopt;
  }
  ++round.next_epoch;
  return number == round.begin_with.epoch ? round.begin_with.batches : 0;
}

void Context::begin_batch(std::int64_t epoch, std::int64_t done, bool more) const {
  if (recovery_ == nullptr || !recovery_->round.commit) return;
  auto& round = recovery_->round;
  if (const BatchPlace place = {epoch, done}; more) {
    if (round.done.epoch != epoch) recovery_->commit(place);  // nothing since the last epoch's newest step
    round.batch = place;
  } else {
    round.batch.reset();
  }
  check_round();
  // The random numbers of a step depend only on the seed and its place, so a new rank draws the lost one's.
  constexpr std::uint64_t kMix[] = {0x9E3779B97F4A7C15u, 0xD1B54A32D192ED03u, 0xA0761D6478BD642Fu};
  torch::manual_seed(recovery_->round.seed + static_cast<std::uint64_t>(epoch) * kMix[0] +
                     static_cast<std::uint64_t>(done) * kMix[1] +
                     static_cast<std::uint64_t>(rank()) * kMix[2]);
}

void Context::check_round() const { ddp::Rounds::check(); }

int run(const std::function<void(Context&)>& train, const ddp::ProcessGroup::Options& options) {
  return run_worker([&](const WorkerEnv& env) {
    static std::optional<WorkerEnv> first_runs;  // as it ended: its ranks may have met elsewhere since
    if (first_runs) {
      // A rank that replaces a lost one would begin with the first run, so none is replaced in this one.
      auto group = ddp::ProcessGroup::connect(*first_runs, options);
      Context context(*first_runs, group);
      train(context);
      return group.close();
    }
    Recovery recovery(env);
    auto generator = at::detail::getDefaultCPUGenerator();
    const auto random = generator.get_state();
    const auto run_round = [&] {
      recovery.round = {};
      generator.set_state(random);  // what train draws is the same on a new rank
      auto group = ddp::ProcessGroup::connect(recovery.rounds.env(), recovery.rounds.options(options));
      Context context(recovery.rounds.env(), group, &recovery);
      train(context);
      recovery.rounds.announce(false);
      group.close();
      first_runs = recovery.rounds.env();
    };
    if (!recovery.rounds.enabled()) return run_round();
    for (bool done = false; !done;) {
      try {
        run_round();
        done = true;
      } catch (const ddp::ReplicasDiffer&) {
        throw;  // this rank is to be replaced
      } catch (const std::exception&) {
        if (!recovery.rounds.next()) throw;
      }
    }
  });
}

}  // namespace ddprun

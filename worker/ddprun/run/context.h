#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <optional>
#include <sstream>
#include <vector>

#include <ddprun/common/status.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/group/process_group.h>

namespace ddprun {

struct Recovery;

/// How all_reduce() combines the ranks' values: torch.distributed.ReduceOp's SUM, AVG, MAX and MIN.
enum class Op { kSum, kMean, kMax, kMin };

/// This rank and its job, as run() passes them to the training function. Every rank calls the collectives, in
/// the same order; with one rank they return at once, and with a rank missing they throw c10::Error after the
/// group's timeout.
class Context {
 public:
  Context(const WorkerEnv& env, ddp::ProcessGroup group, Recovery* recovery = nullptr);

  int rank() const { return group_.rank(); }
  int world_size() const { return group_.size(); }
  int local_rank() const { return env_.local_rank; }
  bool is_main() const { return rank() == 0; }
  at::Device device() const { return group_.device(); }  ///< where models and batches belong
  const ddp::ProcessGroup& group() const { return group_; }
  const WorkerEnv& env() const { return env_; }

  /// A new tensor on the same device, the same on every rank. Shapes and types must match on all ranks.
  /// throws  std::invalid_argument for the mean of integers
  at::Tensor all_reduce(const at::Tensor& tensor, Op op = Op::kSum) const;
  double all_reduce(double value, Op op = Op::kSum) const;

  /// A new tensor with the source rank's values, on every rank.
  at::Tensor broadcast(const at::Tensor& tensor, int source = 0) const;

  /// Every rank's tensor, by rank. gather(): on that rank only, and empty on the others.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) const;
  std::vector<at::Tensor> gather(const at::Tensor& tensor, int destination = 0) const;

  /// Waits for every rank. throws  ddp::MissingRanks naming the missing ones
  void barrier() const { group_.barrier(); }

  /// Rank 0 immediately writes the values and a newline to stdout; the other ranks write nothing.
  template <typename... Values>
  void print(const Values&... values) const {
    if (!is_main()) return;
    std::ostringstream line;
    (line << ... << values) << '\n';
    std::cout << line.str() << std::flush;
  }

  /// A sign of life for ddprun --hang-timeout; call it once per step.
  void heartbeat() const { heartbeat_.beat(); }

  /// Tells ddprun how far this rank is, for its status line, ddpctl and --metrics-port; call it every step or
  /// every few. What is left out keeps its last value.
  ///
  ///   ctx.status({.step = step, .steps = 1000, .phase = "train", .loss = loss.item<double>()});
  void status(const WorkerStatus& status) const { status_.send(status); }

  // For DataLoader and Checkpoint: the training's position, in case a rank is lost.

  /// Begins an epoch with a loader that may be the training's: the first to begin the next epoch is.
  /// returns  how many batches to skip, as their steps are done; nullopt: the loader is another one
  std::optional<std::int64_t> begin_epoch(std::int64_t number) const;
  /// Begins the training's batch after `done` others of the epoch; if no more, ends the epoch. throws  as
  /// check_round()
  void begin_batch(std::int64_t epoch, std::int64_t done, bool more) const;
  /// throws  ddp::RoundOver if a rank was lost
  void check_round() const;
  Recovery* recovery() const { return recovery_; }  ///< null: a lost rank ends the job

 private:
  WorkerEnv env_;
  ddp::ProcessGroup group_;
  Heartbeat heartbeat_;
  StatusChannel status_;
  Recovery* recovery_;
};

/// The main() of a training program on any number of ranks, under ddprun, torchrun, or alone:
///
///   int main() {
///     return ddprun::run([](ddprun::Context& ctx) { ... });
///   }
///
/// Connects the ranks, and chooses each rank's device, before anything else: by default a GPU if there is
/// one. Errors end the process as in run_worker(). If another rank is lost under ddprun --recover=rank, and
/// train has a Checkpoint, an exception leaves train, which is called again with a new Context and the random
/// numbers of the first call; its DataLoader and Checkpoint continue after the last completed step. A program
/// may call run() again: a rank that is lost then ends the job, or restarts all its ranks.
///
/// returns  0, for main()
int run(const std::function<void(Context&)>& train,
        const ddp::ProcessGroup::Options& options = {.device = ddp::DeviceChoice::kAuto});

}  // namespace ddprun

#include "worker/train/callbacks.h"

#include <cerrno>
#include <fstream>

#include "common/errors.h"
#include "common/files.h"
#include "common/logging.h"
#include "worker/train/early_stopping.h"
#include "worker/train/epoch_progress.h"
#include "worker/train/profiler.h"
#include "worker/train/run_plan.h"

namespace ddprun::train {
namespace {

class EarlyStoppingCallback : public Callback {
 public:
  explicit EarlyStoppingCallback(EarlyStoppingOptions options) : rule_(std::move(options)) {}

  void on_validation(const TrainState& state, Control& control) override {
    const auto value = state.metric(rule_.options().monitor);
    if (!value) return;
    if (const auto decision = rule_.check(*value, state.epoch); decision.stop)
      control.request_stop(decision.reason);
  }

  std::string name() const override { return "EarlyStopping"; }
  c10::IValue state_dict() const override { return rule_.state_dict(); }
  void load_state_dict(const c10::impl::GenericDict& state) override { rule_.load_state_dict(state); }

 private:
  EarlyStopping rule_;
};

/// FILE.<rank>: {"epoch":0,"step":1,"rank":0,"indices":[5,3]}, a line a step.
class IndexLog : public Callback {
 public:
  IndexLog(const std::filesystem::path& file, int rank, bool resumed)
      : path_(file.string() + "." + std::to_string(rank)),
        rank_(rank),
        file_(path_, resumed ? std::ios::app : std::ios::trunc) {
    if (!file_) throw IoError(path_, "cannot create", errno);
  }

  void on_step(const TrainState& state, Control&) override {
    file_ << "{\"epoch\":" << state.epoch << ",\"step\":" << state.step << ",\"rank\":" << rank_
          << ",\"indices\":[";
    const char* comma = "";
    for (const auto index : state.indices) {
      file_ << comma << index;
      comma = ",";
    }
    if (!(file_ << "]}" << std::endl)) throw IoError(path_, "cannot write", errno);
  }

 private:
  std::filesystem::path path_;
  int rank_;
  std::ofstream file_;
};

/// Records ten steps of this rank, once the first ones are over.
class ProfileCallback : public Callback {
 public:
  ProfileCallback(std::filesystem::path folder, const ParallelModel& model, bool cuda)
      : folder_(std::move(folder)), model_(model), profiler_(cuda) {}

  void on_step(const TrainState& state, Control&) override {
    ++steps_;
    if (steps_ == kFirst) {
      begin_ = Clock::now();
      data_wait_ = state.data_wait;
      profiler_.start();
    } else if (steps_ == kFirst + kRecorded) {
      finish(state);
    }
  }
  void on_validation(const TrainState& state, Control&) override {
    if (profiler_.recording() && steps_ > kFirst) finish(state);
  }

 private:
  static constexpr std::int64_t kFirst = 5, kRecorded = 10;

  void finish(const TrainState& state) {
    const auto ddp = model_.statistics();
    const auto steps = steps_ - kFirst;
    const auto seconds = [&](std::int64_t ns) { return static_cast<double>(ns * steps) / 1e9; };
    const StepTimes times{steps, seconds_since(begin_), state.data_wait - data_wait_,
                          seconds(ddp.communication_ns), seconds(ddp.overlap_ns)};
    std::error_code ignored;  // what is written next says so
    std::filesystem::create_directories(folder_, ignored);
    write_file_atomic(folder_ / "operators.txt", profiler_.stop(folder_ / "trace.json", times));
    log_info("profile of " + std::to_string(steps) + " steps: " + (folder_ / "operators.txt").string());
  }

  std::filesystem::path folder_;
  const ParallelModel& model_;
  Profiler profiler_;
  std::int64_t steps_ = 0;
  Clock::time_point begin_;
  double data_wait_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Callback>> make_callbacks(const TrainerOptions& options,
                                                      const std::string& monitor,
                                                      const ddp::ProcessGroup& group,
                                                      const ParallelModel& model, bool resumed) {
  std::vector<std::unique_ptr<Callback>> callbacks;
  const auto& checkpoint = options.checkpoint;
  if (checkpoint.patience > 0) {
    EarlyStoppingOptions stopping;
    stopping.monitor = monitor;
    stopping.min_delta = checkpoint.min_delta;
    stopping.patience = checkpoint.patience;
    stopping.mode = monitor_mode(checkpoint, monitor);
    callbacks.push_back(std::make_unique<EarlyStoppingCallback>(stopping));
  }
  if (!options.log_indices.empty())
    callbacks.push_back(std::make_unique<IndexLog>(options.log_indices, group.rank(), resumed));
  if (options.profile && group.rank() == 0)
    callbacks.push_back(
        std::make_unique<ProfileCallback>(options.out / "profile", model, group.device().is_cuda()));
  return callbacks;
}

}  // namespace ddprun::train

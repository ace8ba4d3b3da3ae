#include "worker/train/callbacks.h"

#include <cerrno>
#include <fstream>

#include "common/errors.h"
#include "worker/train/early_stopping.h"
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

}  // namespace

std::vector<std::unique_ptr<Callback>> make_callbacks(const TrainerOptions& options,
                                                      const std::string& monitor,
                                                      const ddp::ProcessGroup& group, bool resumed) {
  std::vector<std::unique_ptr<Callback>> callbacks;
  const auto& checkpoint = options.checkpoint;
  if (checkpoint.patience >= 0) {
    EarlyStoppingOptions stopping;
    stopping.monitor = monitor;
    stopping.min_delta = checkpoint.min_delta;
    stopping.patience = checkpoint.patience;
    stopping.mode = monitor_mode(checkpoint, monitor);
    callbacks.push_back(std::make_unique<EarlyStoppingCallback>(stopping));
  }
  if (!options.log_indices.empty())
    callbacks.push_back(std::make_unique<IndexLog>(options.log_indices, group.rank(), resumed));
  return callbacks;
}

}  // namespace ddprun::train

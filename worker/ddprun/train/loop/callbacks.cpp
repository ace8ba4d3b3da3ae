#include <ddprun/train/loop/callbacks.h>

#include <cerrno>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/train/loop/early_stopping.h>
#include <ddprun/train/loop/epoch_progress.h>
#include <ddprun/train/record/profiler.h>
#include <ddprun/train/record/run_report.h>
#include <ddprun/train/state/run_folder.h>

namespace ddprun::train {
namespace {

std::string profile_trace_of(int rank) {
  return rank == 0 ? "profile/trace.json" : "profile/trace_rank" + std::to_string(rank) + ".json";
}

/// FILE.<rank>: {"epoch":0,"step":1,"rank":0,"indices":[5,3]}, one line per step.
class IndexLog : public Callback {
 public:
  IndexLog(const std::filesystem::path& file, int rank, bool resumed)
      : path_(file.string() + "." + std::to_string(rank)),
        rank_(rank),
        file_(path_, resumed ? std::ios::app : std::ios::trunc) {
    if (!file_) throw IoError(path_, "cannot create", errno);
  }

  void on_step(const TrainState& state, Control&) override {
    if (state.indices.empty()) return;  // another rank's
    const nlohmann::ordered_json line = {
        {"epoch", state.epoch},
        {"step", state.step},
        {"rank", rank_},
        {"indices", std::vector(state.indices.begin(), state.indices.end())}};
    if (!(file_ << line << std::endl)) throw IoError(path_, "cannot write", errno);
  }

 private:
  std::filesystem::path path_;
  int rank_;
  std::ofstream file_;
};

/// Profiles ten steps of this rank after the first few, the same on each; fewer if a validation or the end of
/// an epoch interrupts them.
class ProfileCallback : public Callback {
 public:
  ProfileCallback(const Run& run, const ParallelModel& model)
      : folder_(run.options.out),
        identity_(run.identity),
        rank_(run.group.rank()),
        model_(model),
        cuda_(run.group.device().is_cuda()) {
    if (run.on_rank_0())
      for (const auto& file : profile_files(run.group.size())) run.folder->claim(folder_ / file);
  }
  ~ProfileCallback() override {
    if (!over_ && rank_ == 0)
      log_warning("--profile: nothing was recorded in " + std::to_string(steps_) + " steps; expected " +
                  std::to_string(kFirst + 1) + " or more, two of them in a row within an epoch");
  }

  void on_step(const TrainState& state, Control&) override {
    ++steps_;
    if (over_ || steps_ < kFirst) return;
    if (!profiler_)
      begin(state);
    else if (++recorded_ == kMost)
      finish(state);
  }
  void on_pause(const TrainState& state) override {
    if (profiler_ && recorded_ > 0)
      finish(state);
    else
      profiler_.reset();  // restart at the next step
  }

 private:
  static constexpr std::int64_t kFirst = 5, kMost = 10;

  void begin(const TrainState& state) {
    begin_ = Clock::now();
    data_wait_ = state.data_wait;
    profiler_.emplace(cuda_).start();
  }

  /// Errors are only warnings.
  void finish(const TrainState& state) {
    const auto ddp = model_.statistics();
    const auto seconds = [&](std::int64_t ns) { return static_cast<double>(ns * recorded_) / 1e9; };
    const StepTimes times{recorded_, seconds_since(begin_), state.data_wait - data_wait_,
                          seconds(ddp.communication_ns), seconds(ddp.overlap_ns)};
    over_ = true;
    try {
      if (rank_ > 0 && RunFolder(folder_).identity().run != identity_.run)  // another host's
        throw IoError(folder_, "is not the run's folder on the host of rank " + std::to_string(rank_));
      std::error_code ignored;  // then the writes fail
      const auto table = folder_ / profile_table_of(rank_);
      std::filesystem::create_directories(table.parent_path(), ignored);
      write_file_atomic(table, profiler_->stop(folder_ / profile_trace_of(rank_), times));
      if (rank_ > 0) return profiler_.reset();
      log_info("profile of " + std::to_string(recorded_) + (recorded_ == 1 ? " step: " : " steps: ") +
               table.string());
    } catch (const std::exception& error) {
      log_warning(std::string("no profile: ") + error.what());
    }
    profiler_.reset();
  }

  std::filesystem::path folder_;  // the run's
  RunIdentity identity_;
  int rank_;
  const ParallelModel& model_;
  bool cuda_;
  std::optional<Profiler> profiler_;  // while it records
  bool over_ = false;
  std::int64_t steps_ = 0, recorded_ = 0;
  Clock::time_point begin_;
  double data_wait_ = 0;
};

}  // namespace

std::vector<std::string> profile_files(int ranks) {
  std::vector<std::string> files;
  for (int rank = 0; rank < ranks; ++rank)
    for (const auto& file : {profile_table_of(rank), profile_trace_of(rank)}) files.push_back(file);
  return files;
}

Callbacks make_callbacks(const Run& run, const ParallelModel& model, bool resumed) {
  Callbacks callbacks;
  const auto& options = run.options;
  if (options.checkpoint.patience > 0)
    callbacks.push_back(
        std::make_unique<EarlyStopping>(EarlyStoppingOptions{.monitor = run.monitor,
                                                             .min_delta = options.checkpoint.min_delta,
                                                             .patience = options.checkpoint.patience,
                                                             .mode = run.mode}));
  if (!options.log_indices.empty())
    callbacks.push_back(std::make_unique<IndexLog>(options.log_indices, run.group.rank(), resumed));
  if (options.profile) callbacks.push_back(std::make_unique<ProfileCallback>(run, model));
  callbacks.insert(callbacks.end(), options.callbacks.begin(), options.callbacks.end());
  std::set<std::string> names = {"Trainer", "ModelCheckpoint", "PowerSGD"};
  for (const auto& callback : callbacks)
    if (const auto name = callback->name(); !name.empty() && !names.insert(name).second)
      throw std::invalid_argument(
          "callbacks: expected names that differ from each other and from the trainer's, got '" + name +
          "' again");
  return callbacks;
}

}  // namespace ddprun::train

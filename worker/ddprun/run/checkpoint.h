#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/run/context.h>
#include <ddprun/run/distributed.h>
#include <ddprun/train/optim/observed_optimizer.h>

namespace torch::nn {
class Module;
}
namespace ddprun::train {
struct Position;
struct TrainingState;
}  // namespace ddprun::train

namespace ddprun {

/// A training's state in one file, which Python's torch.load reads too: weights, optimizer, finished epochs,
/// and what keep() adds (docs/runtime/own_program.md has its keys).
///
///   Checkpoint checkpoint(ctx, "own_worker.pt", model, optimizer);
///   for (int64_t epoch = checkpoint.resume(); epoch < 5; checkpoint.save(++epoch)) ...
class Checkpoint {
 public:
  /// model and optimizer must outlive it.
  template <typename Module>
  Checkpoint(const Context& context, std::filesystem::path path, DistributedDataParallel<Module>& model,
             torch::optim::Optimizer& optimizer)
      : Checkpoint(context, std::move(path), model.module(), optimizer) {}
  Checkpoint(const Context& context, std::filesystem::path path, torch::nn::Module& module,
             torch::optim::Optimizer& optimizer);
  /// If another rank was lost, keeps the state for the next round.
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// Also keeps another part of the training, in the file and in memory: anything with state_dict() and
  /// load_state_dict(), such as train::Ema, LrSchedule and GradScaler. Call it before resume(), which loads
  /// the part unless the file was written without it. The part must outlive this.
  template <typename Part>
  void keep(const std::string& name, Part& part) {
    keep(
        name, [&part] { return c10::IValue(part.state_dict()); },
        [&part](const c10::IValue& state) { part.load_state_dict(state.toGenericDict()); });
  }
  /// The same for any other state.
  /// throws  std::invalid_argument for the name "finished", which is this class's own
  void keep(const std::string& name, std::function<c10::IValue()> save,
            std::function<void(const c10::IValue&)> load);

  /// Loads the file, which only rank 0 needs to see, on every rank; in a later round, what the ranks kept.
  ///
  /// returns  how many epochs are finished: 0 if there is no file; kNoMore, which ends every loop, after
  ///          finish()
  /// throws   IoError naming the file if it is damaged or belongs to another model or optimizer
  std::int64_t resume();

  /// Rank 0 writes the file, whole or not at all. Every rank calls it.
  /// throws  IoError naming the file
  void save(std::int64_t finished_epochs);

  /// Saves, with the epoch in progress as the last: the training has ended early, and stays ended when the
  /// program is started again or a rank is lost. Every rank calls it.
  ///
  ///   if (stopping.check(loss, epoch).stop) {
  ///     checkpoint.finish();
  ///     break;
  ///   }
  void finish();
  bool finished() const { return finished_; }  ///< whether finish() was called, now or in an earlier start
  static constexpr std::int64_t kNoMore = std::numeric_limits<std::int64_t>::max();

 private:
  void commit();
  void on_step(bool done);
  void keep_in_memory();
  std::int64_t begin(const train::Position& position);
  void load(const train::TrainingState& state);
  train::TrainingState state_after(const train::Position& position) const;

  const Context& context_;
  std::filesystem::path path_;
  torch::nn::Module& module_;
  torch::optim::Optimizer& optimizer_;
  struct Part {
    std::string name;
    std::function<c10::IValue()> save;
    std::function<void(const c10::IValue&)> load;
  };
  std::vector<Part> parts_;
  int exceptions_;                // in flight when it was made
  Recovery* recovery_ = nullptr;  // null: no state is kept for a lost rank's replacement
  ObservedSteps* steps_ = nullptr;
  std::int64_t saved_ = -1;  // the finished epochs of the last save()
  std::int64_t epoch_ = 0;   // in progress
  bool finished_ = false;
  std::vector<at::Tensor> parameters_;
  // After the newest step.
  std::uint64_t sample_ = 0;  // of the parameters, at the last commit
  std::vector<at::Tensor> buffers_;
};

}  // namespace ddprun

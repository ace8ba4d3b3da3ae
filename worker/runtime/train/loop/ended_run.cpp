#include <ddprun/train/loop/ended_run.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <ddprun/common/logging.h>
#include <ddprun/group/collectives.h>
#include <ddprun/train/loop/resume.h>

namespace ddprun::train {
namespace {

/// Empty if there is something left to train.
std::string why_ended(const Run& run, const TrainingState& state) {
  const auto& options = run.options;
  if (const auto reason = before_resume(state, run).stop_reason) return *reason;
  if (state.position.epoch >= options.epochs)
    return "--epochs=" + std::to_string(options.epochs) + " are done";
  if (options.max_steps > 0 && state.step >= options.max_steps)
    return "--max-steps=" + std::to_string(options.max_steps) + " are done";
  return "";
}

/// Otherwise it was killed before, or the checkpoint is another run's.
bool has_summary(const Run& run, const Resumed& resumed) {
  if (!continues_in(run.options.out, resumed)) return false;
  std::ifstream file(run.options.out / "summary.json");
  const auto summary = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return summary.is_object() && summary.contains("steps") && summary["steps"] == resumed.state.step;
}

}  // namespace

bool has_ended(const Run& run, const Resumed& resumed) {
  if (resumed.path.empty()) return false;
  const auto why = why_ended(run, resumed.state);
  const bool here = run.on_rank_0() && !why.empty() && has_summary(run, resumed);
  if (!ddp::any_rank_true(run.group, here)) return false;
  if (run.on_rank_0())
    log_info("--resume: the run in " + run.options.out.string() + " has ended, at step " +
             std::to_string(resumed.state.step) + ": " + why +
             "; it goes on with more --epochs, --max-steps, --max-time or --patience");
  return true;
}

}  // namespace ddprun::train

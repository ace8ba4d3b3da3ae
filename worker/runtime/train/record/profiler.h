#pragma once

#include <filesystem>
#include <string>

#include <ddprun/train/record/profile_table.h>

namespace ddprun::train {

/// Records what LibTorch does, by Kineto: a Chrome trace and a table of the slowest operators. One at a time
/// in a process, started and stopped by the same thread.
class Profiler {
 public:
  /// cuda  record the GPU's kernels too
  explicit Profiler(bool cuda = false) : cuda_(cuda) {}
  /// Discards what is being recorded.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Costs about a microsecond for each operator until stop(). throws c10::Error if one is recording already
  void start();
  bool recording() const { return recording_; }

  /// trace    where the trace goes, as JSON for chrome://tracing and ui.perfetto.dev
  /// returns  the table as text: profile_table()
  /// throws   IoError; std::logic_error if nothing is being recorded
  std::string stop(const std::filesystem::path& trace, const StepTimes& times);

 private:
  bool cuda_;
  bool recording_ = false;
};

}  // namespace ddprun::train

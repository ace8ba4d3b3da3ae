#pragma once

#include <filesystem>
#include <string>

#include <ddprun/train/record/profile_table.h>

namespace ddprun::train {

/// Profiles LibTorch with Kineto: a Chrome trace and a table of the slowest operators. One at a time per
/// process, started and stopped by the same thread.
class Profiler {
 public:
  /// cuda  also record GPU kernels
  explicit Profiler(bool cuda = false) : cuda_(cuda) {}
  /// Discards the current recording.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Costs about a microsecond per operator until stop(). throws c10::Error if another one is recording
  void start();
  bool recording() const { return recording_; }

  /// trace    gets JSON for chrome://tracing and ui.perfetto.dev
  /// returns  profile_table()
  /// throws   IoError; std::logic_error if not recording
  std::string stop(const std::filesystem::path& trace, const StepTimes& times);

 private:
  bool cuda_;
  bool recording_ = false;
};

}  // namespace ddprun::train

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace ddprun::train {

/// What the trainer itself measured over the profiled steps; seconds, of this rank.
struct StepTimes {
  std::int64_t steps = 0;
  double total = 0;          ///< wall time of the steps
  double data_wait = 0;      ///< waiting for the loader
  double communication = 0;  ///< gradients on their way, as DDP's statistics have it
  double overlap = 0;        ///< the part of communication that ran beside the backward pass
};

/// Records what LibTorch does, by Kineto: a Chrome trace and a table of the slowest operators. One at a time
/// in a process.
class Profiler {
 public:
  /// cuda  record the GPU's kernels too
  explicit Profiler(bool cuda = false);
  /// Discards what is being recorded.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Costs a microsecond or so for each operator until stop(). throws c10::Error if one is recording already
  void start();
  bool recording() const { return recording_; }

  /// trace    where the trace goes, for chrome://tracing and ui.perfetto.dev
  /// returns  the table as text, see operator_table()
  /// throws   IoError
  std::string stop(const std::filesystem::path& trace, const StepTimes& times);

 private:
  bool cuda_;
  bool recording_ = false;
};

}  // namespace ddprun::train

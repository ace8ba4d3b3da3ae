#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ddprun::train {

/// The trainer's own measurements of the profiled steps, on this rank, in seconds.
struct StepTimes {
  std::int64_t steps = 0;
  double total = 0;          ///< wall time of the steps
  double data_wait = 0;      ///< waiting for the loader
  double communication = 0;  ///< gradients, from DDP's statistics
  double overlap = 0;        ///< the part of communication during the backward pass
};

/// When an operator ran.
struct Span {
  std::string name;
  std::uint64_t thread = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

/// All spans with one name.
struct OperatorTime {
  std::string name;
  std::int64_t self_ns = 0;   ///< without nested spans
  std::int64_t total_ns = 0;  ///< with nested spans
  std::int64_t calls = 0;
};

/// Sums by name, longest self time first. Spans of one thread are disjoint or nested.
std::vector<OperatorTime> operator_times(std::vector<Span> spans);

/// As text: how the steps spent their time, and the slowest operators and GPU kernels.
std::string profile_table(const StepTimes& times, const std::vector<OperatorTime>& operators,
                          const std::vector<OperatorTime>& kernels = {}, std::size_t most = 20);

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

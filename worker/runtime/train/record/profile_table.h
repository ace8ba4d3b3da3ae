#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::train {

/// What the trainer itself measured over the profiled steps; seconds, of this rank.
struct StepTimes {
  std::int64_t steps = 0;
  double total = 0;          ///< wall time of the steps
  double data_wait = 0;      ///< waiting for the loader
  double communication = 0;  ///< gradients on their way, as DDP's statistics have it
  double overlap = 0;        ///< the part of communication that ran beside the backward pass
};

/// When something was running.
struct Span {
  std::string name;
  std::uint64_t thread = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

/// All spans of one name.
struct OperatorTime {
  std::string name;
  std::int64_t self_ns = 0;   ///< without the spans within, which have times of their own
  std::int64_t total_ns = 0;  ///< with them
  std::int64_t calls = 0;
};

/// Sums by name, the longest self time first. Spans of one thread lie apart or one within the other.
std::vector<OperatorTime> operator_times(std::vector<Span> spans);

/// Where the time of the steps went, and the slowest of the operators and of the GPU's kernels, as text.
std::string profile_table(const StepTimes& times, const std::vector<OperatorTime>& operators,
                          const std::vector<OperatorTime>& kernels = {}, std::size_t most = 20);

}  // namespace ddprun::train

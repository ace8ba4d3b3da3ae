#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include <ddprun/common/status.h>

namespace ddprun::launcher {

/// The sum of all known seconds.
double total(const WorkerStatus::Seconds& seconds);

/// The times of an attempt's workers, as told by the one that reported most. Seconds are since the job began.
struct AttemptTimes {
  double begin = 0, end = 0;
  WorkerStatus::Seconds spent = {};             ///< in its process
  std::optional<std::int64_t> first_step = {};  ///< steps done when it began
  std::optional<std::int64_t> last_step = {};
};

/// Where a job's time went, in seconds that sum up to "wall":
///   start       until the first batch
///   data, compute, communication, evaluation, checkpoint   as the workers report (docs/status.md)
///   restarts    from the end of an attempt to the first batch of the next
///   repeated    the part of compute spent on steps that an earlier attempt had done
///   other       everything else, such as the last attempt's end
/// null if no worker has reported anything.
nlohmann::ordered_json to_ledger(double wall, const std::vector<AttemptTimes>& attempts);

}  // namespace ddprun::launcher

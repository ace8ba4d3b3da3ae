#include "launcher/failure/ledger.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace ddprun::launcher {

double total(const WorkerStatus::Seconds& seconds) {
  double sum = 0;
  for (const auto& part : {seconds.data, seconds.compute, seconds.communication, seconds.evaluation,
                           seconds.checkpoint, seconds.start})
    sum += part.value_or(0);
  return sum;
}

nlohmann::ordered_json to_ledger(double wall, const std::vector<AttemptTimes>& attempts) {
  WorkerStatus::Seconds sum{0, 0, 0, 0, 0, 0};
  double restarts = 0, repeated = 0;
  bool said = false;
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    const AttemptTimes& each = attempts[i];
    const auto& spent = each.spent;
    said = said || spent != WorkerStatus::Seconds();
    const double start = spent.start.value_or(0);
    if (i == 0)
      *sum.start += each.begin + start;
    else
      restarts += each.begin - attempts[i - 1].end + start;
    double compute = spent.compute.value_or(0);
    const auto steps = each.last_step.value_or(0) - each.first_step.value_or(0);
    const auto before = i == 0 ? std::nullopt : attempts[i - 1].last_step;
    if (before && each.first_step && steps > 0) {
      const auto again = std::clamp<std::int64_t>(*before - *each.first_step, 0, steps);
      const double share = static_cast<double>(again) / static_cast<double>(steps);
      repeated += share * compute;
      compute -= share * compute;
    }
    *sum.compute += compute;
    *sum.data += spent.data.value_or(0);
    *sum.communication += spent.communication.value_or(0);
    *sum.evaluation += spent.evaluation.value_or(0);
    *sum.checkpoint += spent.checkpoint.value_or(0);
  }
  if (!said) return nullptr;
  return {{"wall", wall},
          {"start", *sum.start},
          {"data", *sum.data},
          {"compute", *sum.compute},
          {"communication", *sum.communication},
          {"evaluation", *sum.evaluation},
          {"checkpoint", *sum.checkpoint},
          {"restarts", restarts},
          {"repeated", repeated},
          {"other", wall - total(sum) - restarts - repeated}};
}

}  // namespace ddprun::launcher

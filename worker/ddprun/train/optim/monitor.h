#pragma once

#include <limits>

#include <ddprun/report/metric_sink.h>

namespace ddprun::train {

/// Whether a smaller or a larger value of the monitored metric is better.
enum class MonitorMode { kMin, kMax };

template <typename Value>
bool is_better(MonitorMode mode, Value a, Value b) {
  return mode == MonitorMode::kMin ? a < b : a > b;
}

/// The infinity that every number improves on.
template <typename Value>
Value worst_value(MonitorMode mode) {
  const auto infinity = std::numeric_limits<Value>::infinity();
  return mode == MonitorMode::kMin ? infinity : -infinity;
}

inline std::optional<double> find_metric(const report::MetricRow& row, std::string_view name) {
  for (const auto& [key, value] : row)
    if (key == name) return value;
  return std::nullopt;
}

}  // namespace ddprun::train

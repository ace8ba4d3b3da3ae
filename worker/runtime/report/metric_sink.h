#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddprun::report {

/// The figures of one moment of training, by name: a row of metrics.csv. What is not known is not in it.
using MetricRow = std::vector<std::pair<std::string, double>>;

/// Where rows go. Every row is on its way to disk when add() returns, so that a killed run keeps what it
/// measured; a row that cannot be written whole (a full disk) leaves no part of it behind, and later rows may
/// be written again.
class MetricSink {
 public:
  virtual ~MetricSink() = default;
  /// throws  IoError
  virtual void add(const MetricRow& row) = 0;
};

}  // namespace ddprun::report

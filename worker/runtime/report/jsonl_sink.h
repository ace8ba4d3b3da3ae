#pragma once

#include <filesystem>
#include <vector>

#include <ddprun/report/append_file.h>
#include <ddprun/report/metric_sink.h>

namespace ddprun::report {

/// Writes rows as JSON objects, one a line, in the row's order: {"epoch":0,"step":10,"train_loss":0.41}.
/// Numbers look as in the CSV file; NaN and infinities, which JSON has not, are null.
class JsonlSink : public MetricSink {
 public:
  /// Starts the file anew. first: what it begins with, such as a resumed run's earlier rows. throws IoError
  explicit JsonlSink(const std::filesystem::path& path, const std::vector<MetricRow>& first = {});
  void add(const MetricRow& row) override;

 private:
  AppendFile file_;
};

}  // namespace ddprun::report

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <ddprun/report/append_file.h>
#include <ddprun/report/metric_sink.h>

namespace ddprun::report {

/// Writes an event file that TensorBoard shows: events.out.tfevents.<time>.<host>.<pid>.<n>, always a new
/// one.
class TensorBoardSink : public MetricSink {
 public:
  /// purge_from  a resumed run: TensorBoard forgets what earlier files in the folder tell of this step and
  ///             later ones
  /// throws      IoError
  explicit TensorBoardSink(const std::filesystem::path& folder,
                           std::optional<std::int64_t> purge_from = std::nullopt);

  /// Each figure under its own name as tag, at the row's "step" (0 without one).
  void add(const MetricRow& row) override;

  /// png    a PNG file's bytes; width, height, channels: of its picture
  /// throws IoError
  void add_image(std::string_view tag, std::int64_t step, std::string_view png, int width, int height,
                 int channels = 3);

  /// markdown  shown as such; UTF-8
  /// throws    IoError
  void add_text(std::string_view tag, std::int64_t step, std::string_view markdown);

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace ddprun::report

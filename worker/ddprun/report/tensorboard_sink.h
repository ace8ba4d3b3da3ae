#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <ddprun/report/metric_sink.h>

namespace ddprun::report {

struct EventTime {
  double wall_time = 0;  ///< seconds since 1970
  std::int64_t step = 0;
};

// TensorBoard's events as protocol buffers (tensorboard/compat/proto: event.proto, summary.proto).

/// The start of a file: version 2 of the format.
std::string version_event(double wall_time);
/// Voids what the folder's earlier files contain for this step and later ones.
std::string restart_event(EventTime time);
/// Where TensorBoard shows a metric: train/loss for "train_loss", val/..., test/..., train/lr,
/// system/rank1/rss_mb for "rss_mb_rank1". Other names stay unchanged.
std::string tensorboard_tag(const std::string& metric);

/// Each figure under its tensorboard_tag(), rounded to float as the format requires.
std::string scalars_event(EventTime time, const MetricRow& figures);
std::string image_event(EventTime time, std::string_view tag, std::string_view png, int width, int height,
                        int channels);
/// Markdown, stored under "<tag>/text_summary" like PyTorch's writer.
std::string text_event(EventTime time, std::string_view tag, std::string_view text);

/// An event as stored in the file: its length and its bytes, each followed by its masked CRC-32C.
std::string framed(std::string_view event);

/// Writes a new event file for TensorBoard: events.out.tfevents.TIME.HOST.PID.N.
class TensorBoardSink : public MetricSink {
 public:
  /// purge_from  for a resumed run: TensorBoard forgets this and later steps of the folder's earlier files
  /// throws      IoError
  explicit TensorBoardSink(const std::filesystem::path& folder,
                           std::optional<std::int64_t> purge_from = std::nullopt);

  /// Each figure under its tensorboard_tag(), at the row's "step" (default 0).
  void add(const MetricRow& row) override;

  /// png    a PNG file's bytes
  /// throws IoError
  void add_image(std::string_view tag, std::int64_t step, std::string_view png, int width, int height,
                 int channels = 3);

  /// markdown  UTF-8
  /// throws    IoError
  void add_text(std::string_view tag, std::int64_t step, std::string_view markdown);

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace ddprun::report

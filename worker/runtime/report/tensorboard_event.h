#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ddprun/report/metric_sink.h>

namespace ddprun::report {

/// When an event was, in two ways.
struct EventTime {
  double wall_time = 0;  ///< seconds since 1970
  std::int64_t step = 0;
};

/// TensorBoard's events as protocol buffers (tensorboard/compat/proto: event.proto, summary.proto).
///
/// What a file begins with: version 2 of the format.
std::string version_event(double wall_time);
/// What was told of this step and later ones, by earlier files of the folder, is void.
std::string restart_event(EventTime time);
/// Each figure under its name as tag, rounded to float as the format has it.
std::string scalars_event(EventTime time, const MetricRow& figures);
std::string image_event(EventTime time, std::string_view tag, std::string_view png, int width, int height,
                        int channels);
/// Read as Markdown; kept under "<tag>/text_summary", as PyTorch's writer does.
std::string text_event(EventTime time, std::string_view tag, std::string_view text);

/// An event as the file has it: its length and its bytes, each followed by its masked CRC-32C.
std::string framed(std::string_view event);

}  // namespace ddprun::report

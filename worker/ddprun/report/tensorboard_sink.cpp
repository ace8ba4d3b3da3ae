#include <ddprun/report/tensorboard_sink.h>

#include <unistd.h>

#include <atomic>
#include <boost/crc.hpp>
#include <chrono>
#include <protozero/pbf_writer.hpp>

#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::report {
namespace {

using protozero::pbf_writer;

// Numbers of the fields that are written.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace value {
constexpr int kTag = 1, kSimpleValue = 2, kImage = 4, kTensor = 8, kMetadata = 9;
}
namespace image {
constexpr int kHeight = 1, kWidth = 2, kColourSpace = 3, kEncoded = 4;
}
namespace tensor {
constexpr int kType = 1, kShape = 2, kStrings = 8;
constexpr int kString = 7;  // a type's number
}  // namespace tensor
constexpr int kSummaryValue = 1, kSessionStatus = 1, kSessionStart = 1, kPluginData = 1, kPluginName = 1;
constexpr int kShapeDimension = 2, kDimensionSize = 1;

pbf_writer begin_event(std::string& bytes, EventTime time) {
  pbf_writer writer(bytes);
  if (time.wall_time != 0) writer.add_double(event::kWallTime, time.wall_time);
  if (time.step != 0) writer.add_int64(event::kStep, time.step);  // an absent field means zero
  return writer;
}

/// Calls fill(value) for the one value of a summary.
template <typename Fill>
std::string summary_event(EventTime time, std::string_view tag, Fill fill) {
  std::string bytes;
  auto writer = begin_event(bytes, time);
  {
    pbf_writer summary(writer, event::kSummary);
    pbf_writer value(summary, kSummaryValue);
    value.add_string(value::kTag, tag.data(), tag.size());
    fill(value);
  }
  return bytes;
}

void append_little_endian(std::string& bytes, std::uint64_t number, int size) {
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xFF);
}

/// CRC-32C (Castagnoli), rotated and shifted as in TFRecord files.
std::uint32_t masked_crc(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  const std::uint32_t sum = crc.checksum();
  return (sum >> 15 | sum << 17) + 0xA282EAD8U;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::filesystem::path event_file(const std::filesystem::path& folder) {
  static std::atomic<int> files_of_this_process{0};
  return folder / (formatted("events.out.tfevents.%010.0f.", now_seconds()) + host_name() +
                   formatted(".%d.%d", ::getpid(), files_of_this_process++));
}

std::string begin_of_file(std::optional<std::int64_t> purge_from) {
  const double now = now_seconds();
  auto bytes = framed(version_event(now));
  if (purge_from) bytes += framed(restart_event({now, *purge_from}));
  return bytes;
}

}  // namespace

std::string version_event(double wall_time) {
  std::string bytes;
  begin_event(bytes, {wall_time, 0}).add_string(event::kFileVersion, "brain.Event:2");
  return bytes;
}

std::string restart_event(EventTime time) {
  std::string bytes;
  auto writer = begin_event(bytes, time);
  pbf_writer(writer, event::kSessionLog).add_enum(kSessionStatus, kSessionStart);
  return bytes;
}

std::string tensorboard_tag(const std::string& metric) {
  for (const std::string set : {"train", "val", "test"})
    if (metric.starts_with(set + "_")) return set + "/" + metric.substr(set.size() + 1);
  if (metric == "epoch" || metric == "lr" || metric == "samples_per_second") return "train/" + metric;
  const auto at = metric.rfind('_');
  const auto end = metric.substr(at + 1);
  const bool of_ranks = end.starts_with("rank") || end == "min" || end == "max";
  const auto figure = of_ranks ? metric.substr(0, at) : metric;
  for (const char* unit : {"_ms", "_mb", "_percent"})
    if (figure.ends_with(unit)) return "system/" + (of_ranks ? end : "rank0") + "/" + figure;
  return metric;
}

std::string scalars_event(EventTime time, const MetricRow& figures) {
  std::string bytes;
  auto writer = begin_event(bytes, time);
  {
    pbf_writer summary(writer, event::kSummary);
    for (const auto& [name, figure] : figures) {
      pbf_writer value(summary, kSummaryValue);
      value.add_string(value::kTag, tensorboard_tag(name));
      value.add_float(value::kSimpleValue, static_cast<float>(figure));
    }
  }
  return bytes;
}

std::string image_event(EventTime time, std::string_view tag, std::string_view png, int width, int height,
                        int channels) {
  return summary_event(time, tag, [&](pbf_writer& value) {
    pbf_writer picture(value, value::kImage);
    picture.add_int32(image::kHeight, height);
    picture.add_int32(image::kWidth, width);
    picture.add_int32(image::kColourSpace, channels);
    picture.add_bytes(image::kEncoded, png.data(), png.size());
  });
}

std::string text_event(EventTime time, std::string_view tag, std::string_view text) {
  return summary_event(time, std::string(tag) + "/text_summary", [&](pbf_writer& value) {
    {
      pbf_writer tensor(value, value::kTensor);
      tensor.add_enum(tensor::kType, tensor::kString);
      {
        pbf_writer shape(tensor, tensor::kShape);
        pbf_writer(shape, kShapeDimension).add_int64(kDimensionSize, 1);
      }
      tensor.add_bytes(tensor::kStrings, text.data(), text.size());
    }
    pbf_writer metadata(value, value::kMetadata);
    pbf_writer(metadata, kPluginData).add_string(kPluginName, "text");
  });
}

std::string framed(std::string_view event) {
  std::string bytes;
  append_little_endian(bytes, event.size(), 8);
  append_little_endian(bytes, masked_crc(bytes), 4);
  bytes += event;
  append_little_endian(bytes, masked_crc(event), 4);
  return bytes;
}

TensorBoardSink::TensorBoardSink(const std::filesystem::path& folder, std::optional<std::int64_t> purge_from)
    : file_(event_file(folder), begin_of_file(purge_from)) {}

void TensorBoardSink::add(const MetricRow& row) {
  std::int64_t step = 0;
  MetricRow figures;
  for (const auto& [name, value] : row) {
    if (name == "step")
      step = static_cast<std::int64_t>(value);
    else
      figures.emplace_back(name, value);
  }
  file_.append(framed(scalars_event({now_seconds(), step}, figures)));
}

void TensorBoardSink::add_image(std::string_view tag, std::int64_t step, std::string_view png, int width,
                                int height, int channels) {
  file_.append(framed(image_event({now_seconds(), step}, tag, png, width, height, channels)));
}

void TensorBoardSink::add_text(std::string_view tag, std::int64_t step, std::string_view markdown) {
  file_.append(framed(text_event({now_seconds(), step}, tag, markdown)));
}

}  // namespace ddprun::report

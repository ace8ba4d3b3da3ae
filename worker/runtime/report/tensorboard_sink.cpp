#include <ddprun/report/tensorboard_sink.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>

#include <ddprun/common/host_name.h>
#include <ddprun/report/tensorboard_event.h>

namespace ddprun::report {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::filesystem::path event_file(const std::filesystem::path& folder) {
  static std::atomic<int> files_of_this_process{0};
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%010.0f", now_seconds());
  return folder / ("events.out.tfevents." + std::string(seconds) + "." + host_name() + "." +
                   std::to_string(::getpid()) + "." + std::to_string(files_of_this_process++));
}

std::string begin_of_file(std::optional<std::int64_t> purge_from) {
  const double now = now_seconds();
  auto bytes = framed(version_event(now));
  if (purge_from) bytes += framed(restart_event({now, *purge_from}));
  return bytes;
}

}  // namespace

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

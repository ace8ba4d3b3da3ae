#include "launcher/job/server.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

using json = nlohmann::ordered_json;

struct RankMetric {
  const char *name, *type, *path, *help;  // path: of the value in a rank's view
};

constexpr std::array kRankMetrics{
    RankMetric{"worker_cpu_seconds_total", "counter", "/cpu_seconds", "CPU time of the worker's process."},
    RankMetric{"worker_resident_memory_bytes", "gauge", "/resident_bytes", "Memory of the worker's process."},
    RankMetric{"worker_device_memory_bytes", "gauge", "/status/memory/device",
               "Memory of the worker's device, as reported by the worker."},
    RankMetric{"worker_steps_total", "counter", "/status/step", "Steps done, as reported by the worker."},
    RankMetric{"worker_planned_steps", "gauge", "/status/steps", "Steps that the training will take in all."},
    RankMetric{"worker_epochs_total", "counter", "/status/epoch", "Epochs done."},
    RankMetric{"worker_samples_total", "counter", "/status/samples",
               "Samples that this worker has trained on."},
    RankMetric{"worker_loss", "gauge", "/status/loss", "The loss, as reported by the worker."},
    RankMetric{"worker_step_seconds", "gauge", "/pace/step_seconds",
               "Time of a step, over the last ten seconds."},
    RankMetric{"worker_status_age_seconds", "gauge", "/said_seconds_ago",
               "Time since the worker's last status."},
    RankMetric{"worker_garbage_lines_total", "counter", "/garbage_lines",
               "Lines on the status channel that are not valid status lines."},
};

constexpr std::array kActivities{"data", "compute", "communication", "evaluation", "checkpoint", "start"};

class MetricsWriter {
 public:
  void family(const std::string& name, const char* type, const char* help) {
    name_ = "ddprun_" + name;
    text_ += "# HELP " + name_ + " " + help + "\n# TYPE " + name_ + " " + type + "\n";
  }
  void sample(const std::string& labels, double value) {
    std::array<char, 64> digits{"NaN"};
    char* end = digits.data() + 3;
    if (!std::isnan(value)) end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    text_ +=
        name_ + (labels.empty() ? "" : "{" + labels + "}") + " " + std::string(digits.data(), end) + "\n";
  }
  void single(const std::string& name, const char* type, const char* help, double value) {
    family(name, type, help);
    sample("", value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string name_, text_;
};

std::string label(const std::string& name, std::string_view value) {
  std::string text = name + "=\"";
  for (const char c : valid_utf8(value)) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text + "\"";
}

std::string rank_label(const json& rank) { return label("rank", std::to_string(rank["rank"].get<int>())); }

void write_rank_family(const json& view, const RankMetric& metric, MetricsWriter& writer) {
  const json::json_pointer path(metric.path);
  bool begun = false;
  for (const json& rank : view["ranks"]) {
    if (!rank.contains(path)) continue;
    if (!std::exchange(begun, true)) writer.family(metric.name, metric.type, metric.help);
    writer.sample(rank_label(rank), rank[path].is_null() ? NAN : rank[path].get<double>());
  }
}

void write_activities(const json& view, MetricsWriter& writer) {
  writer.family("worker_activity_seconds_total", "counter",
                "Where the worker's time went, as reported by the worker.");
  for (const json& rank : view["ranks"])
    for (const char* activity : kActivities)
      if (const auto path = json::json_pointer("/status/seconds") / activity; rank.contains(path))
        writer.sample(rank_label(rank) + "," + label("activity", activity), rank[path].get<double>());
}

void write_slowness(const json& view, MetricsWriter& writer) {
  writer.family("worker_slowness_ratio", "gauge",
                "Own time of a step relative to the median rank's; 1 unless the rank is slow.");
  for (const char* ranks : {"ranks", "other_ranks"})
    for (const json& rank : view.value(ranks, json::array())) {
      double factor = 1;
      for (const json& slow : view["stragglers"])
        if (slow["rank"] == rank["rank"]) factor = slow["factor"].get<double>();
      writer.sample(rank_label(rank), factor);
    }
}

}  // namespace

std::string metrics_text(const json& view) {
  MetricsWriter writer;
  writer.family("job_info", "gauge", "The job that runs here.");
  writer.sample(label("job", view["job"].get<std::string>()) + "," +
                    label("run_id", view["run_id"].get<std::string>()) + "," +
                    label("host", view["host"].get<std::string>()) + "," +
                    label("version", view["ddprun"].get<std::string>()),
                1);
  writer.single("job_uptime_seconds", "gauge", "Time since the job began.", view["seconds"].get<double>());
  writer.single("job_restarts_total", "counter", "Restarts so far.", view["restarts"].get<double>());
  writer.single("job_workers", "gauge", "Workers of this node.", view["workers"].get<double>());
  if (view.contains("remaining_seconds"))
    writer.single("job_remaining_seconds", "gauge", "Time that the remaining steps will take.",
                  view["remaining_seconds"].get<double>());
  writer.family("worker_up", "gauge", "Whether the worker is running.");
  for (const json& rank : view["ranks"])
    writer.sample(rank_label(rank), rank.contains("exit_code") || rank.contains("signal_name") ? 0 : 1);
  for (const RankMetric& metric : kRankMetrics) write_rank_family(view, metric, writer);
  write_activities(view, writer);
  if (view.contains("stragglers")) write_slowness(view, writer);
  return writer.take();
}

}  // namespace ddprun::launcher

#include <ddprun/report/jsonl_sink.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include <ddprun/report/number_text.h>

namespace ddprun::report {
namespace {

std::string line_of(const MetricRow& row) {
  std::string line = "{";
  for (const auto& [name, value] : row)
    line += (line.size() == 1 ? "" : ",") + nlohmann::json(name).dump() + ":" +
            (std::isfinite(value) ? number_text(value) : "null");
  return line + "}\n";
}

std::string begin_of(const std::vector<MetricRow>& first) {
  std::string text;
  for (const auto& row : first) text += line_of(row);
  return text;
}

}  // namespace

JsonlSink::JsonlSink(const std::filesystem::path& path, const std::vector<MetricRow>& first)
    : file_(path, begin_of(first), !first.empty()) {}

void JsonlSink::add(const MetricRow& row) { file_.append(line_of(row)); }

}  // namespace ddprun::report

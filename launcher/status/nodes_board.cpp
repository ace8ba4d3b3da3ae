#include "launcher/status/nodes_board.h"

#include <climits>
#include <exception>
#include <utility>

#include <ddprun/common/status.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

using json = nlohmann::ordered_json;

constexpr std::chrono::seconds kForgotten{15};
constexpr std::size_t kMostRanks = 1 << 14;
constexpr int kMostViewLevels = 8;

/// The parts of a view that ddpctl shows, with the types it expects. throws std::exception
json checked(const std::string& text) {
  const json view = parse_shallow_json(text, kMostViewLevels);
  json result = {{"state", view.at("state").get<std::string>()}};
  for (const char* name :
       {"rank", "pid", "exit_code", "cpu_seconds", "resident_bytes", "seconds", "said_seconds_ago"})
    if (view.contains(name) && view[name].is_number()) result[name] = view[name];
  for (const char* name : {"rank", "pid"})
    if (!result.at(name).is_number_unsigned() || result[name] > INT_MAX) throw std::out_of_range(name);
  if (view.contains("signal_name")) result["signal_name"] = view["signal_name"].get<std::string>();
  result["status"] = json::parse(to_json_line(parse_status(view.at("status").dump()).value()));
  for (const char* name : {"pace", "gpu"})
    if (view.contains(name))
      for (const auto& [key, value] : view[name].items()) result[name][key] = value.get<double>();
  if (result.contains("pace")) result["pace"].at("step_seconds");
  return result;
}

}  // namespace

void NodesBoard::take(const std::string& node, int round, const std::string& text, Clock::time_point now) {
  if (round < round_) return;
  if (round > std::exchange(round_, round)) ranks_.clear();
  json view;
  try {
    view = checked(text);
  } catch (const std::exception&) {
    return;
  }
  const int rank = view["rank"].get<int>();
  if (ranks_.size() == kMostRanks && !ranks_.contains(rank)) return;
  json& last = ranks_[rank].view;
  double cpu = view.value("cpu_seconds", 0.0), seconds = view.value("seconds", 0.0);
  if (last.is_object() && last["pid"] == view["pid"]) {
    cpu -= last.value("cpu_seconds", 0.0);
    seconds -= last.value("seconds", 0.0);
  }
  if (view.contains("cpu_seconds") && seconds > 0) view["cpu_percent"] = 100 * cpu / seconds;
  view["node"] = node;
  ranks_[rank] = {std::move(view), now};
}

json NodesBoard::ranks(Clock::time_point now) const {
  json views = json::array();
  for (const auto& [number, rank] : ranks_)
    if (now - rank.heard < kForgotten) views.push_back(rank.view);
  return views;
}

std::vector<OwnTime> NodesBoard::own_times(Clock::time_point now) const {
  std::vector<OwnTime> times;
  for (const json& view : ranks(now)) {
    if (!view.contains(json::json_pointer("/pace/compute_seconds"))) continue;
    const json& pace = view["pace"];
    if (pace.value("steps", 0.0) >= kLeastSteps)
      times.push_back({view.value("rank", 0), view["status"].value("step", std::int64_t{0}),
                       pace.value("compute_seconds", 0.0), pace.value("data_seconds", 0.0),
                       view.value("node", "")});
  }
  return times;
}

}  // namespace ddprun::launcher

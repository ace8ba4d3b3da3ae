#include "launcher/status/progress.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <exception>
#include <utility>

#include <ddprun/common/files.h>
#include <ddprun/common/status.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

// Less than this per step is noise, however large the factor.
constexpr double kLeastExcess = 0.0005;

double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_of(const std::vector<OwnTime>& times, double (*part)(const OwnTime&)) {
  std::vector<double> values;
  for (const OwnTime& time : times) values.push_back(part(time));
  return lower_median(std::move(values));
}

bool is_slow(double seconds, double median) {
  return median > 0 && seconds >= kSlowFactor * median && seconds - median >= kLeastExcess;
}

constexpr std::chrono::seconds kPointsApart{1};  // between the points of the window
constexpr std::size_t kWindowPoints = 11;

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

std::string describe(const Straggler& straggler) {
  char text[200];
  std::snprintf(text, sizeof text, " is %.1f times slower than the median since step %lld: %s",
                straggler.factor, static_cast<long long>(straggler.since_step),
                straggler.by_data ? "data, not compute" : "compute, not data");
  return "rank " + std::to_string(straggler.rank) +
         (straggler.node.empty() ? "" : " on node " + printable(straggler.node)) + text;
}

nlohmann::ordered_json to_json(const Straggler& straggler) {
  return {{"rank", straggler.rank},
          {"factor", straggler.factor},
          {"since_step", straggler.since_step},
          {"cause", straggler.by_data ? "data" : "compute"}};
}

std::vector<Straggler> slow_ranks(const std::vector<OwnTime>& times) {
  std::vector<Straggler> slow;
  if (times.size() < 2) return slow;
  const double compute = median_of(times, [](const OwnTime& time) { return time.compute; });
  const double own = median_of(times, [](const OwnTime& time) { return time.compute + time.data; });
  for (const OwnTime& time : times) {
    const double all = time.compute + time.data;
    if (is_slow(time.compute, compute))
      slow.push_back({time.rank, time.compute / compute, time.step, false, time.node});
    else if (is_slow(all, own))
      slow.push_back({time.rank, all / own, time.step, true, time.node});
  }
  return slow;
}

std::vector<Straggler> StragglerWatch::look(const std::vector<OwnTime>& times) {
  std::map<int, Straggler> slow;
  for (const Straggler& straggler : slow_ranks(times)) slow.emplace(straggler.rank, straggler);
  std::vector<Straggler> named;
  for (const OwnTime& time : times) {
    State& state = states_[time.rank];
    const auto found = slow.find(time.rank);
    if (found == slow.end()) {
      state.slow_looks = 0;
      if (++state.fast_looks >= kSlowLooks) state.named = false;
      continue;
    }
    state.fast_looks = 0;
    const auto since = state.slow_looks == 0 && !state.named ? time.step : state.straggler.since_step;
    state.straggler = found->second;
    state.straggler.since_step = since;
    if (++state.slow_looks < kSlowLooks || state.named) continue;
    state.named = true;
    named.push_back(state.straggler);
  }
  return named;
}

std::vector<Straggler> StragglerWatch::slow_now() const {
  std::vector<Straggler> slow;
  for (const auto& [rank, state] : states_)
    if (state.named) slow.push_back(state.straggler);
  return slow;
}

void Progress::add(std::string_view bytes, Clock::time_point now) {
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    const bool whole = end != std::string_view::npos;
    bytes.remove_prefix(whole ? end + 1 : bytes.size());
    if (!skipping_ && partial_.size() + part.size() >= kMaxStatusLine) {
      skipping_ = true;
      partial_.clear();
      ++garbage_;
    }
    if (!skipping_) partial_ += part;
    if (!whole) return;
    if (!std::exchange(skipping_, false)) take_line(partial_, now);
    partial_.clear();
  }
}

void Progress::take_line(std::string_view line, Clock::time_point now) {
  const auto status = parse_status(line, latest_);
  if (!status) {
    ++garbage_;
    return;
  }
  latest_ = *status;
  said_at_ = now;
  if (!latest_.step) return;
  if (!first_step_) first_step_ = latest_.step;
  const Reached now_at{latest_.epoch.value_or(0), *latest_.step};
  if (now_at.epoch <= reached_.epoch && now_at.step < reached_.step) reached_.starts_over = true;
  reached_ = furthest(reached_, now_at);
  if (!window_.empty() && *latest_.step < *window_.back().status.step) window_.clear();  // it started over
  const std::size_t size = window_.size();
  if (size >= 2 && window_[size - 1].at - window_[size - 2].at < kPointsApart) {
    window_.back() = {now, latest_};
    return;
  }
  window_.push_back({now, latest_});
  if (window_.size() > kWindowPoints) window_.pop_front();
}

std::optional<Pace> Progress::pace() const {
  if (window_.size() < 2) return std::nullopt;
  const Point &first = window_.front(), &last = window_.back();
  Pace pace;
  pace.steps = *last.status.step - *first.status.step;
  double seconds = std::chrono::duration<double>(last.at - first.at).count();
  for (const auto member : {&WorkerStatus::Seconds::evaluation, &WorkerStatus::Seconds::checkpoint})
    seconds -= (last.status.seconds.*member).value_or(0) - (first.status.seconds.*member).value_or(0);
  if (pace.steps <= 0 || seconds <= 0) return std::nullopt;
  const auto each = [&](std::optional<double> WorkerStatus::Seconds::*member) -> std::optional<double> {
    const auto &before = first.status.seconds.*member, &after = last.status.seconds.*member;
    if (!before || !after) return std::nullopt;
    return std::max(*after - *before, 0.0) / static_cast<double>(pace.steps);
  };
  pace.step_seconds = seconds / static_cast<double>(pace.steps);
  pace.data = each(&WorkerStatus::Seconds::data);
  pace.compute = each(&WorkerStatus::Seconds::compute);
  pace.communication = each(&WorkerStatus::Seconds::communication);
  if (first.status.samples && last.status.samples)
    pace.samples_per_second =
        std::max(static_cast<double>(*last.status.samples - *first.status.samples), 0.0) / seconds;
  return pace;
}

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

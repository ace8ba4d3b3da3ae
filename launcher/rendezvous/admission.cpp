#include "launcher/rendezvous/admission.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include <ddprun/common/text.h>
#include "launcher/events/clock.h"
#include "launcher/host/cpus.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kMaxItems = 8;
constexpr std::size_t kMaxNameBytes = 64;  // the longest host name on Linux

std::string name(const std::string& text) { return shortened(printable(text), kMaxNameBytes); }

std::string nnodes(int min, int max) {
  return "--nnodes=" + (min == max ? "" : std::to_string(min) + ":") + std::to_string(max);
}

bool is_digit(char c) { return '0' <= c && c <= '9'; }

/// Takes the leading number off the text, without leading zeros.
std::string_view take_number(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of('0'), text.size()));
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit) - text.begin();
  const std::string_view number = text.substr(0, static_cast<std::size_t>(end));
  text.remove_prefix(number.size());
  return number;
}

/// Nodes with a rank send only the program's name, as they may have other arguments; spares have no rank.
bool has_other_program(const CoordinatorSettings& settings, const Join& join) {
  const std::string &a = settings.program, &b = join.program;
  const auto is_name_of = [](const std::string& name, const std::string& command) {
    return name.find(' ') == std::string::npos && command.starts_with(name + ' ');
  };
  if (a.empty() || b.empty() || a == b) return false;
  return settings.spares == 0 || !(is_name_of(a, b) || is_name_of(b, a));
}

}  // namespace

bool has_other_run_id(const CoordinatorSettings& settings, const Join& join) {
  return !join.run_id.empty() && join.run_id != settings.run_id;
}

std::string join_problem(const CoordinatorSettings& settings, const Join& join, const std::string& address) {
  const std::string node = "node " + describe_node(join, address);
  if (has_other_run_id(settings, join))
    return node + " has run id " + single_quoted(join.run_id) + ", the coordinator has " +
           single_quoted(settings.run_id) + " (--rdzv-id)";
  if (has_other_program(settings, join))
    return node + " runs " + single_quoted(join.program) + ", the coordinator's job runs " +
           single_quoted(settings.program) +
           ": expected one --rdzv-endpoint per job, or the same --rdzv-id on every node of a job";
  if (join.min_nodes != settings.min_nodes || join.max_nodes != settings.max_nodes)
    return node + " has " + nnodes(join.min_nodes, join.max_nodes) + ", the coordinator has " +
           nnodes(settings.min_nodes, settings.max_nodes);
  if (join.node_rank && (*join.node_rank < 0 || *join.node_rank >= settings.max_nodes))
    return node + " has --node-rank=" + std::to_string(*join.node_rank) + ": expected 0 to " +
           std::to_string(settings.max_nodes - 1);
  // The sum of workers must fit an int.
  const int most = std::numeric_limits<int>::max() / settings.max_nodes;
  if (join.workers < 1 || join.workers > most)
    return node + " would start " + std::to_string(join.workers) + " workers: expected a number from 1 to " +
           std::to_string(most);
  return "";
}

std::int64_t time_of_day_ms() {
  const auto now = WallClock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

std::string clock_problem(std::int64_t theirs, std::int64_t from, std::int64_t until) {
  constexpr std::int64_t kMostMs = 2000;
  const std::int64_t behind = from - theirs, ahead = theirs - until;  // at least
  if (behind <= kMostMs && ahead <= kMostMs) return "";
  return "its clock is " + in_seconds(std::chrono::milliseconds(std::max(behind, ahead))) +
         (ahead > 0 ? " ahead of" : " behind") + " the coordinator's (--preflight=clock)";
}

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const auto x = take_number(a), y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a.size() != whole_b.size() ? whole_a.size() < whole_b.size() : whole_a < whole_b;
}

std::string describe_node(const Join& join, const std::string& address) {
  const std::string& where = join.address.empty() ? address : join.address;
  return name(join.node) + " (" + (where.empty() ? "the coordinator's host" : name(where)) + ")";
}

std::string first_few(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < items.size() && i < kMaxItems; ++i) text += (i == 0 ? "" : ", ") + items[i];
  return items.size() <= kMaxItems ? text
                                   : text + " and " + std::to_string(items.size() - kMaxItems) + " more";
}

std::string describe_node_ranks(const std::vector<int>& ranks, const std::vector<std::string>& names) {
  if (names.empty())
    return (ranks.size() == 1 ? "node rank " : "node ranks ") + first_few(number_ranges(ranks));
  std::vector<std::string> items;
  for (const int rank : ranks) {
    const auto index = static_cast<std::size_t>(rank);
    const std::string number = "node rank " + std::to_string(rank);
    items.push_back(index < names.size() ? name(names[index]) + " (" + number + ")" : number);
  }
  return first_few(items);
}

}  // namespace ddprun::launcher

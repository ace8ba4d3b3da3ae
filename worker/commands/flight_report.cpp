#include "worker/commands/flight_report.h"

#include <algorithm>
#include <iostream>
#include <map>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include <ddprun/flight/flight_analysis.h>

namespace ddprun::worker {
namespace {

using ddp::CollectiveState;
using ddp::FlightDump;
using Dumps = std::map<int, FlightDump>;

constexpr std::size_t kLargestFile = 64 << 20;
/// Records written on request are not simultaneous: a rank counts as behind only if it is later than this.
constexpr std::int64_t kPatienceNs = 1'000'000'000;

ddp::RankFlight flight_of(const FlightDump& dump) {
  return {.rank = dump.rank, .failure = "", .collectives = dump.collectives};
}

/// The longest time that a rank has waited in the finding's call; 0 if no record contains it any more.
std::int64_t waited(const Dumps& dumps, const ddp::FlightFinding& finding) {
  std::int64_t longest = 0;
  for (const int rank : finding.waiting)
    for (const auto& call : dumps.at(rank).collectives)
      if (call.group == finding.group && call.sequence == finding.sequence)
        longest = std::max(longest,
                           (call.ended_ns != 0 ? call.ended_ns : dumps.at(rank).time_ns) - call.created_ns);
  return longest;
}

bool any_failed(const Dumps& dumps, const ddp::FlightFinding& finding) {
  return std::ranges::any_of(dumps, [&](const auto& item) {
    return std::ranges::any_of(item.second.collectives, [&](const auto& call) {
      return call.group == finding.group && call.sequence == finding.sequence &&
             call.state == CollectiveState::kFailed;
    });
  });
}

bool only_missing(const ddp::FlightFinding& finding) {
  return std::ranges::all_of(finding.culprits, [](const auto& rank) {
    return rank.kind == ddp::FlightFinding::Rank::Kind::kMissing;
  });
}

using Groups = std::map<std::string, std::vector<int>>;

Groups groups_of(const Dumps& dumps) {
  Groups groups;
  for (const auto& [rank, dump] : dumps) groups.insert(dump.groups.begin(), dump.groups.end());
  return groups;
}

/// The group of the whole job, in which positions are reported.
std::string largest_group(const Groups& groups) {
  const auto largest = std::ranges::max_element(
      groups, [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  return largest == groups.end() ? "" : largest->first;
}

void report_group(const Dumps& dumps, const std::string& group, const std::vector<int>& members,
                  FlightReport& report) {
  std::vector<ddp::RankFlight> flights;
  for (const auto& [rank, dump] : dumps) flights.push_back(flight_of(dump));
  const auto finding = ddp::find_culprits(group, members, flights);
  const std::string name = "group " + group + ": ";
  if (!finding) {
    report.lines.push_back(name + "all ranks agree");
    return;
  }
  const auto wait = waited(dumps, *finding);
  const bool transient = only_missing(*finding) && !any_failed(dumps, *finding) && wait < kPatienceNs;
  report.culprit = report.culprit || !transient;
  report.lines.push_back(
      name + describe_with_number(finding->call) + ": " +
      describe_culprits(*finding, transient ? "had not arrived yet" : "did not arrive", " instead"));
  if (!finding->waiting.empty())
    report.lines.push_back(name + ddp::describe_ranks(finding->waiting) + " waited there, up to " +
                           ddp::seconds_text(wait));
}

/// The newest record of each rank, ignoring jobs other than the newest record's.
Dumps newest_of_each_rank(std::vector<FlightDump> list, FlightReport& report) {
  std::ranges::sort(list, [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
  const int world_size = list.back().world_size;
  Dumps dumps;
  for (auto& dump : list) {
    if (dump.world_size == world_size)
      dumps[dump.rank] = std::move(dump);
    else
      report.lines.push_back("rank " + std::to_string(dump.rank) + ": its record is from a job of " +
                             std::to_string(dump.world_size) + " ranks, but the newest is from a job of " +
                             std::to_string(world_size) + ": left out");
  }
  return dumps;
}

void report_positions(const Dumps& dumps, const std::string& group, FlightReport& report) {
  const int world_size = dumps.begin()->second.world_size;
  std::vector<int> absent;
  for (int rank = 0; rank < world_size; ++rank)
    if (dumps.count(rank) == 0) absent.push_back(rank);
  if (!absent.empty()) report.lines.push_back(ddp::describe_ranks(absent) + ": no record");
  std::int64_t newest = dumps.begin()->second.time_ns;
  for (const auto& [rank, dump] : dumps) newest = std::max(newest, dump.time_ns);
  for (const auto& [rank, dump] : dumps) {
    std::string line = "rank " + std::to_string(rank) + " " + describe_position(group, flight_of(dump));
    if (newest - dump.time_ns >= kPatienceNs)
      line += ", written " + ddp::seconds_text(newest - dump.time_ns) + " before the last";
    report.lines.push_back(line + ", written because: " + dump.reason);
  }
}

}  // namespace

FlightReport make_flight_report(std::vector<FlightDump> list) {
  FlightReport report;
  if (list.empty()) return report;
  const Dumps dumps = newest_of_each_rank(std::move(list), report);
  const Groups groups = groups_of(dumps);
  report_positions(dumps, largest_group(groups), report);
  for (const auto& [group, members] : groups) report_group(dumps, group, members, report);
  return report;
}

int run_flight_report(int argc, char** argv) {
  std::filesystem::path folder;
  settings::Command command;
  command.name = "worker flight";
  command.description =
      "compares the ranks' flight records after a hang or crash. Exits with 1 if a rank is to blame.";
  command.positionals = {{"folder", "FOLDER"}};
  command.settings = {
      settings::help_flag(),
      settings::path("folder", folder,
                     "folder with flight_RANK.json files, perhaps in its subfolders: a log folder, or "
                     "flight/ in a run folder")
          .not_a_flag()};
  if (!apply_words({argv + 1, argv + argc}, command)) return 0;
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    throw UsageError("worker flight: expected a folder, got '" + folder.string() + "'");
  std::vector<FlightDump> dumps;
  for (auto entry = std::filesystem::recursive_directory_iterator(
           folder, std::filesystem::directory_options::skip_permission_denied, error);
       !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (name.rfind("flight_", 0) != 0 || entry->path().extension() != ".json") continue;
    try {
      const UniqueFd file = open_regular_file(entry->path());
      dumps.push_back(ddp::parse_flight_dump(read_file(file, entry->path(), kLargestFile)));
    } catch (const IoError& problem) {
      std::cout << problem.what() << '\n';
    } catch (const std::exception& problem) {
      std::cout << one_line(entry->path().string() + ": " + problem.what()) << '\n';
    }
  }
  if (dumps.empty()) throw IoError(folder, "found no readable flight_RANK.json");
  const auto report = make_flight_report(std::move(dumps));
  for (const auto& line : report.lines) std::cout << one_line(line) << '\n';
  std::cout << std::flush;
  return report.culprit ? 1 : 0;
}

}  // namespace ddprun::worker

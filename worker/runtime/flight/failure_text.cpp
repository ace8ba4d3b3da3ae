#include <ddprun/flight/failure_text.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include <ddprun/flight/describe_ranks.h>

namespace ddprun::ddp {
namespace {

std::string seconds_text(std::int64_t nanoseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(nanoseconds) / 1e9);
  return text;
}

/// About ranks that came to the call but have ended or failed since; "" if there are none.
std::string describe_ended(const std::vector<int>& members, const std::vector<RankFlight>& flights) {
  std::vector<int> silent;
  std::string text;
  for (const int rank : members) {
    const auto found =
        std::find_if(flights.begin(), flights.end(), [&](const auto& flight) { return flight.rank == rank; });
    if (found == flights.end() || (!found->answers && found->failure.empty()))
      silent.push_back(rank);
    else if (!found->failure.empty())
      text += (text.empty() ? "" : "; ") + describe_ranks({rank}) + " has failed: " + found->failure;
  }
  if (silent.empty()) return text;
  return describe_ranks(silent) +
         (silent.size() == 1 ? " has ended or does not answer" : " have ended or do not answer");
}

std::string describe_without_board(const std::optional<FlightFinding>& finding,
                                   const std::vector<RankFlight>& flights) {
  std::string text = "rank 0, which keeps the store, has ended or does not answer";
  for (const auto& flight : flights)
    if (flight.rank == 0 && !flight.failure.empty())
      text = "rank 0, which keeps the store, has failed: " + flight.failure;
  if (!finding) return text;
  FlightFinding known = *finding;  // of the silence of the others nothing follows
  std::erase_if(known.culprits,
                [](const auto& rank) { return rank.kind != FlightFinding::Rank::Kind::kDiffers; });
  return text + (known.culprits.empty()
                     ? ""
                     : "; " + describe_culprits(known, "", " while this rank made that call"));
}

/// Of a send or recv, which are not numbered: all that can be told is where the other rank stands.
std::string describe_other_end(const CollectiveRecord& call, std::int64_t waited_ns, std::vector<int> members,
                               const std::vector<RankFlight>& flights) {
  if (call.peer < 0) return "no rank sent it within " + seconds_text(waited_ns);
  members = {members.at(static_cast<std::size_t>(call.peer))};
  const auto ended = describe_ended(members, flights);
  if (!ended.empty()) return ended;
  const auto flight = std::find_if(flights.begin(), flights.end(),
                                   [&](const auto& known) { return known.rank == members[0]; });
  return describe_ranks(members) + (call.op == "send" ? " did not take" : " did not send") + " it within " +
         seconds_text(waited_ns) + ": it is at " + describe_position(call.group, *flight);
}

}  // namespace

std::string why_it_failed(const CollectiveRecord& call, std::int64_t waited_ns, int rank,
                          const std::vector<int>& members, const std::vector<RankFlight>& flights,
                          bool board_gone) {
  const auto finding = find_culprits(call.group, members, flights, rank);
  if (board_gone) return describe_without_board(finding, flights);
  if (call.sequence == 0) return describe_other_end(call, waited_ns, members, flights);
  if (finding && finding->sequence == call.sequence)
    return describe_culprits(*finding, "did not come within " + seconds_text(waited_ns),
                             " while this rank made that call");
  if (finding && finding->sequence < call.sequence)
    return "the ranks parted before, at #" + std::to_string(finding->sequence) + " (" +
           describe(finding->call) + "): " + describe_culprits(*finding, "did not come", " instead");
  const auto ended = describe_ended(members, flights);
  return ended.empty() ? "all ranks made this call, and it failed after " + seconds_text(waited_ns) : ended;
}

}  // namespace ddprun::ddp

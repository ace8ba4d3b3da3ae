#include <ddprun/flight/flight_analysis.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

namespace ddprun::ddp {
namespace {

using Calls = std::map<std::uint64_t, const CollectiveRecord*>;

/// What must be the same on all ranks of a collective.
auto signature(const CollectiveRecord& call) {
  return std::tuple(call.op, call.elements, call.dtype, call.tensors, call.peer);
}

struct Member {
  const RankFlight* flight = nullptr;  ///< nullptr: nothing is known
  Calls calls;                         ///< by sequence number

  std::uint64_t last() const { return calls.empty() ? 0 : calls.rbegin()->first; }
  /// The ring drops old calls: those before its first one are not missing.
  bool forgot(std::uint64_t sequence) const { return !calls.empty() && sequence < calls.begin()->first; }
  const CollectiveRecord* at(std::uint64_t sequence) const {
    const auto found = calls.find(sequence);
    return found == calls.end() ? nullptr : found->second;
  }
};

using Members = std::map<int, Member>;

/// The latest state of a rank; nullptr if nothing is known.
const RankFlight* latest_flight(int rank, const std::vector<RankFlight>& flights) {
  const auto found =
      std::find_if(flights.rbegin(), flights.rend(), [&](const auto& flight) { return flight.rank == rank; });
  return found == flights.rend() ? nullptr : &*found;
}

Members members_of(const std::string& group, const std::vector<int>& ranks,
                   const std::vector<RankFlight>& flights) {
  Members members;
  for (const int rank : ranks) {
    auto& member = members[rank];
    member.flight = latest_flight(rank, flights);
    if (member.flight == nullptr) continue;
    for (const auto& call : member.flight->collectives)
      if (call.group == group && call.sequence > 0) member.calls[call.sequence] = &call;
  }
  return members;
}

/// True if a rank has made this call and it has not completed there.
bool somebody_waits(const Members& members, std::uint64_t sequence) {
  return std::ranges::any_of(members, [&](const auto& member) {
    const auto* call = member.second.at(sequence);
    return call != nullptr && call->state != CollectiveState::kCompleted;
  });
}

bool ranks_part_at(const Members& members, std::uint64_t sequence) {
  const CollectiveRecord* first = nullptr;
  bool missing = false;
  for (const auto& [rank, member] : members) {
    const auto* call = member.at(sequence);
    if (call == nullptr) {
      missing = missing || !member.forgot(sequence);
    } else if (first == nullptr) {
      first = call;
    } else if (signature(*call) != signature(*first)) {
      return true;
    }
  }
  return missing && somebody_waits(members, sequence);
}

/// The most frequent call with that number; among equally frequent ones, the lowest rank's.
const CollectiveRecord* expected_call(const Members& members, std::uint64_t sequence,
                                      std::optional<int> seen_by) {
  if (seen_by) {
    const auto found = members.find(*seen_by);
    if (found != members.end() && found->second.at(sequence) != nullptr) return found->second.at(sequence);
  }
  const CollectiveRecord* best = nullptr;
  std::ptrdiff_t most = 0;
  for (const auto& [rank, member] : members) {
    const auto* call = member.at(sequence);
    if (call == nullptr) continue;
    const auto same = std::ranges::count_if(members, [&](const auto& other) {
      const auto* theirs = other.second.at(sequence);
      return theirs != nullptr && signature(*theirs) == signature(*call);
    });
    if (same > most) best = call, most = same;
  }
  return best;
}

FlightFinding::Rank judge_absent(const std::string& group, int rank, const RankFlight* flight) {
  using Kind = FlightFinding::Rank::Kind;
  if (flight == nullptr) return {rank, Kind::kSilent, ""};
  if (!flight->failure.empty()) return {rank, Kind::kFailed, flight->failure};
  return {rank, flight->answers ? Kind::kMissing : Kind::kSilent, describe_position(group, *flight)};
}

/// Names the ranks that made the call but have ended or failed since; "" if there are none.
std::string describe_ended(const std::vector<int>& members, const std::vector<RankFlight>& flights) {
  std::vector<int> silent;
  std::string text;
  for (const int rank : members) {
    const auto* found = latest_flight(rank, flights);
    if (found == nullptr || (!found->answers && found->failure.empty()))
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
  if (const auto* flight = latest_flight(0, flights); flight != nullptr && !flight->failure.empty())
    text = "rank 0, which keeps the store, has failed: " + flight->failure;
  if (!finding) return text;
  FlightFinding known = *finding;  // the other ranks' silence no longer means anything
  std::erase_if(known.culprits,
                [](const auto& rank) { return rank.kind != FlightFinding::Rank::Kind::kDiffers; });
  return text + (known.culprits.empty()
                     ? ""
                     : "; " + describe_culprits(known, "", " while this rank made that call"));
}

/// For a send or recv, which has no number: only says where the other rank is.
std::string describe_other_end(const CollectiveRecord& call, std::int64_t waited_ns, std::vector<int> members,
                               const std::vector<RankFlight>& flights) {
  if (call.peer < 0) return "no rank sent it within " + seconds_text(waited_ns);
  members = {members.at(static_cast<std::size_t>(call.peer))};
  const auto ended = describe_ended(members, flights);
  if (!ended.empty()) return ended;
  return describe_ranks(members) + (call.op == "send" ? " did not take" : " did not send") + " it within " +
         seconds_text(waited_ns) + ": it is " +
         describe_position(call.group, *latest_flight(members[0], flights));
}

}  // namespace

std::string seconds_text(std::int64_t nanoseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(nanoseconds) / 1e9);
  return text;
}

std::string describe_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t named = std::min(ranks.size(), kNamed);
  for (std::size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == ranks.size();
    text += (i == 0 ? "" : last ? " and " : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > named) text += " and " + std::to_string(ranks.size() - named) + " others";
  return text;
}

std::optional<FlightFinding> find_culprits(const std::string& group, const std::vector<int>& ranks,
                                           const std::vector<RankFlight>& flights,
                                           std::optional<int> seen_by) {
  const Members members = members_of(group, ranks, flights);
  std::set<std::uint64_t> sequences;
  for (const auto& [rank, member] : members)
    for (const auto& [sequence, call] : member.calls) sequences.insert(sequence);
  const auto where = std::ranges::find_if(
      sequences, [&](std::uint64_t sequence) { return ranks_part_at(members, sequence); });
  if (where == sequences.end()) return std::nullopt;

  FlightFinding finding{group, *where, *expected_call(members, *where, seen_by), {}, {}};
  for (const auto& [rank, member] : members) {
    const auto* call = member.at(*where);
    if (call == nullptr && member.forgot(*where)) continue;
    if (call == nullptr)
      finding.culprits.push_back(judge_absent(group, rank, member.flight));
    else if (signature(*call) == signature(finding.call))
      finding.waiting.push_back(rank);
    else
      finding.culprits.push_back({rank, FlightFinding::Rank::Kind::kDiffers, describe(*call)});
  }
  std::ranges::stable_sort(finding.culprits, [](const auto& a, const auto& b) { return a.kind < b.kind; });
  return finding;
}

std::string describe_position(const std::string& group, const RankFlight& flight) {
  const auto last = std::find_if(flight.collectives.rbegin(), flight.collectives.rend(),
                                 [&](const auto& call) { return call.group == group && call.sequence > 0; });
  if (last == flight.collectives.rend()) return "before its first collective";
  return "at #" + std::to_string(last->sequence) + " (" + describe(*last) + ", " +
         std::string(to_text(last->state)) + ")";
}

std::string describe_culprits(const FlightFinding& finding, const std::string& did_not_arrive,
                              const std::string& other_call) {
  using Kind = FlightFinding::Rank::Kind;
  // One group for each set of ranks with the same clause, in the order of their first ranks.
  std::vector<std::pair<const FlightFinding::Rank*, std::vector<int>>> groups;
  for (const auto& culprit : finding.culprits) {
    const auto same = std::ranges::find_if(groups, [&](const auto& group) {
      return group.first->kind == culprit.kind && group.first->text == culprit.text;
    });
    if (same == groups.end())
      groups.push_back({&culprit, {culprit.rank}});
    else
      same->second.push_back(culprit.rank);
  }
  std::string text;
  for (const auto& [culprit, ranks] : groups) {
    const bool one = ranks.size() == 1;
    text += (text.empty() ? "" : "; ") + describe_ranks(ranks);
    switch (culprit->kind) {
      case Kind::kDiffers:
        text += " called " + culprit->text + other_call;
        break;
      case Kind::kMissing:
        text += " " + did_not_arrive + (one ? ": it is " : ": they are ") + culprit->text;
        break;
      case Kind::kFailed:
        text += std::string(one ? " has" : " have") + " failed: " + culprit->text;
        break;
      case Kind::kSilent:
        text += one ? " has ended or does not answer" : " have ended or do not answer";
        if (!culprit->text.empty()) text += ", last seen " + culprit->text;
        break;
    }
  }
  return text;
}

std::string why_it_failed(const CollectiveRecord& call, std::int64_t waited_ns, int rank,
                          const std::vector<int>& members, const std::vector<RankFlight>& flights,
                          bool board_gone) {
  const auto finding = find_culprits(call.group, members, flights, rank);
  if (board_gone) return describe_without_board(finding, flights);
  if (call.sequence == 0) return describe_other_end(call, waited_ns, members, flights);
  if (finding && finding->sequence == call.sequence)
    return describe_culprits(*finding, "did not arrive within " + seconds_text(waited_ns),
                             " while this rank made that call");
  if (finding && finding->sequence < call.sequence)
    return "the ranks diverged earlier, at #" + std::to_string(finding->sequence) + " (" +
           describe(finding->call) + "): " + describe_culprits(*finding, "did not arrive", " instead");
  const auto ended = describe_ended(members, flights);
  return ended.empty() ? "all ranks made this call, and it failed after " + seconds_text(waited_ns) : ended;
}

}  // namespace ddprun::ddp

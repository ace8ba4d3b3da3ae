#include <ddprun/flight/flight_analysis.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

namespace ddprun::ddp {
namespace {

using Kind = FlightFinding::Rank::Kind;

/// What must be the same on all ranks of a collective.
auto signature(const CollectiveRecord& call) {
  return std::tuple(call.op, call.elements, call.dtype, call.tensors, call.peer);
}

/// The latest state of a rank; nullptr if nothing is known.
const RankFlight* latest_flight(int rank, const std::vector<RankFlight>& flights) {
  const auto found =
      std::find_if(flights.rbegin(), flights.rend(), [&](const auto& flight) { return flight.rank == rank; });
  return found == flights.rend() ? nullptr : &*found;
}

std::string does_not_answer(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? " has ended or does not answer" : " have ended or do not answer";
}

/// The ranks' calls with one number: who made which, and who has not made any.
struct Calls {
  std::map<int, const CollectiveRecord*> made;
  std::vector<int> absent;

  /// True if some made different calls, or one is absent while another waits.
  bool diverge() const {
    const auto first = signature(*made.begin()->second);
    return std::ranges::any_of(made, [&](const auto& each) {
      return signature(*each.second) != first ||
             (!absent.empty() && each.second->state != CollectiveState::kCompleted);
    });
  }

  /// That rank's call, else the most frequent one; among equally frequent ones, the lowest rank's.
  const CollectiveRecord& expected(std::optional<int> seen_by) const {
    if (seen_by && made.contains(*seen_by)) return *made.at(*seen_by);
    const auto frequency = [this](const auto& each) {
      if (each.second->op == kCloseOp) return std::ptrdiff_t{0};  // where others still wait
      return std::ranges::count_if(
          made, [&](const auto& other) { return signature(*other.second) == signature(*each.second); });
    };
    return *std::ranges::max_element(made, {}, frequency)->second;
  }
};

/// By number. The ring drops old calls: a rank is not absent where its ring does not reach back.
std::map<std::uint64_t, Calls> calls_of(const std::string& group, const std::vector<int>& ranks,
                                        const std::vector<RankFlight>& flights) {
  std::map<std::uint64_t, Calls> calls;
  std::map<int, std::uint64_t> oldest;
  for (const int rank : ranks)
    if (const auto* flight = latest_flight(rank, flights))
      for (const auto& call : flight->collectives)
        if (call.group == group && call.sequence > 0) {
          calls[call.sequence].made[rank] = &call;
          oldest.try_emplace(rank, call.sequence);
        }
  for (auto& [sequence, at] : calls)
    for (const int rank : std::set(ranks.begin(), ranks.end()))
      if (!at.made.contains(rank) && (!oldest.contains(rank) || oldest[rank] < sequence))
        at.absent.push_back(rank);
  return calls;
}

/// Whether the rank has closed the group of the whole job that this one belongs to: "0" of "0", "0.1" and
/// "0/nccl".
bool has_finished(const std::string& group, const RankFlight& flight) {
  return std::ranges::any_of(flight.collectives, [&](const auto& call) {
    return call.op == kCloseOp && group.starts_with(call.group) &&
           (group.size() == call.group.size() || group[call.group.size()] == '.' ||
            group[call.group.size()] == '/');
  });
}

FlightFinding::Rank judge_absent(const std::string& group, int rank, const RankFlight* flight) {
  if (flight == nullptr) return {Kind::kSilent, rank, ""};
  if (!flight->failure.empty()) return {Kind::kFailed, rank, flight->failure};
  if (has_finished(group, *flight)) return {Kind::kFinished, rank, ""};
  return {flight->answers ? Kind::kMissing : Kind::kSilent, rank, describe_position(group, *flight)};
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
  return silent.empty() ? text : describe_ranks(silent) + does_not_answer(silent);
}

std::string describe_without_board(std::optional<FlightFinding> finding,
                                   const std::vector<RankFlight>& flights) {
  const auto* host = latest_flight(0, flights);
  std::string text = "rank 0, which keeps the store, " + (host != nullptr && !host->failure.empty()
                                                              ? "has failed: " + host->failure
                                                              : "has ended or does not answer");
  if (!finding) return text;
  // The other ranks' silence no longer means anything.
  std::erase_if(finding->culprits, [](const auto& rank) { return rank.kind > Kind::kDiffers; });
  if (finding->culprits.empty()) return text;
  return text + "; " + describe_culprits(*finding, "", " while this rank made that call");
}

/// For a send or recv, which has no number: only says where the other rank is.
std::string describe_other_end(const CollectiveRecord& call, std::int64_t waited_ns,
                               const std::vector<int>& members, const std::vector<RankFlight>& flights) {
  if (call.peer < 0) return "no rank sent it within " + seconds_text(waited_ns);
  const std::vector<int> peer = {members.at(static_cast<std::size_t>(call.peer))};
  if (const auto ended = describe_ended(peer, flights); !ended.empty()) return ended;
  return describe_ranks(peer) + (call.op == "send" ? " did not take" : " did not send") + " it within " +
         seconds_text(waited_ns) + ": it is " +
         describe_position(call.group, *latest_flight(peer[0], flights));
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
  for (std::size_t i = 0; i < named; ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > named) text += " and " + std::to_string(ranks.size() - named) + " others";
  return text;
}

std::string describe_with_number(const CollectiveRecord& call) {
  const std::string number = call.sequence == 0 ? "" : " #" + std::to_string(call.sequence);
  return call.op + number + describe(call).substr(call.op.size());
}

std::optional<FlightFinding> find_culprits(const std::string& group, const std::vector<int>& ranks,
                                           const std::vector<RankFlight>& flights,
                                           std::optional<int> seen_by) {
  const auto calls = calls_of(group, ranks, flights);
  const auto where = std::ranges::find_if(calls, [](const auto& each) { return each.second.diverge(); });
  if (where == calls.end()) return std::nullopt;
  FlightFinding finding{group, where->first, where->second.expected(seen_by), {}, {}};
  for (const auto& [rank, call] : where->second.made)
    if (signature(*call) == signature(finding.call))
      finding.waiting.push_back(rank);
    else if (call->op == kCloseOp)
      finding.culprits.push_back({Kind::kFinished, rank, ""});
    else
      finding.culprits.push_back({Kind::kDiffers, rank, describe(*call)});
  for (const int rank : where->second.absent)
    finding.culprits.push_back(judge_absent(group, rank, latest_flight(rank, flights)));
  std::ranges::stable_sort(finding.culprits, {}, &FlightFinding::Rank::kind);
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
  std::string text;
  std::set<std::pair<Kind, std::string>> said;
  for (const auto& culprit : finding.culprits) {
    if (!said.emplace(culprit.kind, culprit.text).second) continue;
    std::vector<int> ranks;  // of which the same is to be said
    for (const auto& other : finding.culprits)
      if (other.kind == culprit.kind && other.text == culprit.text) ranks.push_back(other.rank);
    const bool one = ranks.size() == 1;
    text += (text.empty() ? "" : "; ") + describe_ranks(ranks);
    switch (culprit.kind) {
      case Kind::kFinished:
        text += one ? " has finished and makes no more calls" : " have finished and make no more calls";
        break;
      case Kind::kDiffers:
        text += " called " + culprit.text + other_call;
        break;
      case Kind::kMissing:
        text += " " + did_not_arrive + (one ? ": it is " : ": they are ") + culprit.text;
        break;
      case Kind::kFailed:
        text += (one ? " has failed: " : " have failed: ") + culprit.text;
        break;
      case Kind::kSilent:
        text += does_not_answer(ranks) + (culprit.text.empty() ? "" : ", last seen " + culprit.text);
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
                             call.op == kCloseOp ? " and waits there, but this rank has finished"
                                                 : " while this rank made that call");
  if (finding && finding->sequence < call.sequence)
    return "the ranks diverged earlier, at #" + std::to_string(finding->sequence) + " (" +
           describe(finding->call) + "): " + describe_culprits(*finding, "did not arrive", " instead");
  const auto ended = describe_ended(members, flights);
  return ended.empty() ? "all ranks made this call, and it failed after " + seconds_text(waited_ns) : ended;
}

}  // namespace ddprun::ddp

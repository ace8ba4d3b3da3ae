#include <ddprun/flight/flight_analysis.h>

#include <numeric>

#include "tests/support/catch.h"

using namespace ddprun::ddp;

namespace {

/// One letter a call: a, b = all_reduce of 1, 2 float; B = broadcast of 2 float; c = close. The last one is
/// followed by its state: '.' completed, '?' pending, '!' failed; all before it have completed.
RankFlight rank_at(int rank, const std::string& calls, std::uint64_t first = 1) {
  RankFlight flight;
  flight.rank = rank;
  for (const char letter : calls) {
    if (letter == '?' || letter == '!') {
      flight.collectives.back().state = letter == '?' ? CollectiveState::kStarted : CollectiveState::kFailed;
      continue;
    }
    CollectiveRecord record;
    record.sequence = first++;
    record.group = "world";
    record.op = letter == 'B' ? "broadcast" : letter == 'c' ? kCloseOp : "all_reduce";
    record.dtype = "float";
    record.elements = letter == 'a' ? 1 : 2;
    record.tensors = letter == 'c' ? 0 : 1;
    record.state = CollectiveState::kCompleted;
    flight.collectives.push_back(record);
  }
  return flight;
}

std::string findings(const std::vector<RankFlight>& flights, int size,
                     std::optional<int> seen_by = std::nullopt) {
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  const auto finding = find_culprits("world", members, flights, seen_by);
  if (!finding) return "";
  return "#" + std::to_string(finding->sequence) + " " + describe(finding->call) + ": " +
         describe_culprits(*finding, "did not arrive", " instead");
}

constexpr std::int64_t kWaited = 30'040'000'000;

CollectiveRecord call_of(std::uint64_t sequence, const std::string& op = "all_reduce") {
  CollectiveRecord call;
  call.sequence = sequence;
  call.group = "world";
  call.op = op;
  call.dtype = "float";
  call.elements = 5;
  call.tensors = 1;
  call.state = CollectiveState::kStarted;
  return call;
}

RankFlight flight_of(int rank, const std::vector<CollectiveRecord>& calls, bool answers = true,
                     const std::string& failure = "") {
  RankFlight flight;
  flight.rank = rank;
  flight.answers = answers;
  flight.failure = failure;
  flight.collectives = calls;
  return flight;
}

std::string why(const std::vector<RankFlight>& flights, bool board_gone = false) {
  return why_it_failed(call_of(2), kWaited, 0, {0, 1, 2}, flights, board_gone);
}

const RankFlight kThisRank = flight_of(0, {call_of(2)});

}  // namespace

TEST_CASE("ranks that agree have no culprit", "[flight]") {
  CHECK(findings({rank_at(0, "aba"), rank_at(1, "aba")}, 2) == "");
  CHECK(findings({rank_at(0, "aba?"), rank_at(1, "aba?")}, 2) == "");
  CHECK(findings({rank_at(0, ""), rank_at(1, "")}, 2) == "");
  // One is ahead, but nobody waits: a broadcast's root goes on at once.
  CHECK(findings({rank_at(0, "abB"), rank_at(1, "ab")}, 2) == "");
}

TEST_CASE("a rank that did not arrive is named with its position", "[flight]") {
  CHECK(findings({rank_at(0, "ab?"), rank_at(1, "a")}, 2) ==
        "#2 all_reduce of 2 float: rank 1 did not arrive: it is at #1 (all_reduce of 1 float, completed)");
  CHECK(findings({rank_at(0, "ab!"), rank_at(1, "")}, 2) ==
        "#2 all_reduce of 2 float: rank 1 did not arrive: it is before its first collective");
  // The first place counts, not the last.
  CHECK(findings({rank_at(0, "ab?"), rank_at(1, "a"), rank_at(2, "ab?")}, 3).rfind("#2", 0) == 0);
}

TEST_CASE("a rank that made another call is named with it", "[flight]") {
  CHECK(findings({rank_at(0, "ab?"), rank_at(1, "aB?")}, 2) ==
        "#2 all_reduce of 2 float: rank 1 called broadcast of 2 float instead");
  CHECK(findings({rank_at(0, "ab?"), rank_at(1, "aB?")}, 2, 1) ==
        "#2 broadcast of 2 float: rank 0 called all_reduce of 2 float instead");
  // Most ranks are right.
  CHECK(findings({rank_at(0, "aa?"), rank_at(1, "ab?"), rank_at(2, "ab?")}, 3) ==
        "#2 all_reduce of 2 float: rank 0 called all_reduce of 1 float instead");
  // The first difference counts, also where ranks are missing later.
  CHECK(findings({rank_at(0, "aB"), rank_at(1, "abb?")}, 2).rfind("#2", 0) == 0);
}

TEST_CASE("a rank that has finished is named as such, whoever looks", "[flight]") {
  for (const auto seen_by : {std::optional<int>(), std::optional(1)})
    CHECK(findings({rank_at(0, "ac?"), rank_at(1, "ab?"), rank_at(2, "ac?")}, 3, seen_by) ==
          "#2 all_reduce of 2 float: ranks 0 and 2 have finished and make no more calls");
  CHECK(findings({rank_at(0, "ac?"), rank_at(1, "ab?")}, 2, 0) ==
        "#2 close: rank 1 called all_reduce of 2 float instead");
  auto close = call_of(2, kCloseOp);
  close.dtype = "", close.elements = close.tensors = 0;
  CHECK(
      why_it_failed(close, kWaited, 0, {0, 1}, {flight_of(0, {close}), flight_of(1, {call_of(2)})}, false) ==
      "rank 1 called all_reduce of 5 float and waits there, but this rank has finished");
  // It closed the whole job's group, so it does not come in the others either.
  auto finished = rank_at(1, "ac?"), waiting = rank_at(0, "ab?");
  finished.collectives.back().group = "0", finished.collectives.back().sequence = 9;
  const auto in_group = [&](const std::string& name) {
    finished.collectives.front().group = name;
    for (auto& call : waiting.collectives) call.group = name;
    const auto finding = find_culprits(name, {0, 1}, {waiting, finished});
    return finding ? describe_culprits(*finding, "did not arrive", "") : "";
  };
  for (const auto* name : {"0.1", "0.1.2", "0/nccl"})
    CHECK(in_group(name) == "rank 1 has finished and makes no more calls");
  for (const auto* name : {"1", "00", "1.0"}) CHECK(in_group(name).starts_with("rank 1 did not arrive"));
}

TEST_CASE("a rank that is silent or has failed is told from one that only did not arrive", "[flight]") {
  auto failed = rank_at(1, "a"), silent = rank_at(2, "a");
  failed.failure = "no luck";
  silent.answers = false;
  CHECK(findings({rank_at(0, "ab?"), failed, silent, rank_at(3, "")}, 5) ==
        "#2 all_reduce of 2 float: rank 3 did not arrive: it is before its first collective; "
        "rank 1 has failed: no luck; rank 2 has ended or does not answer, last seen at "
        "#1 (all_reduce of 1 float, completed); rank 4 has ended or does not answer");
}

TEST_CASE("ranks of which the same is to be said are named together", "[flight]") {
  std::vector<RankFlight> flights = {rank_at(0, "ab?")};
  for (int rank = 1; rank <= 12; ++rank) flights.push_back(rank_at(rank, "a"));
  CHECK(findings(flights, 13) ==
        "#2 all_reduce of 2 float: ranks 1, 2, 3, 4, 5, 6, 7, 8 and 4 others did not arrive: they are at "
        "#1 (all_reduce of 1 float, completed)");
  CHECK(describe_ranks({3}) == "rank 3");
  CHECK(describe_ranks({3, 5}) == "ranks 3 and 5");
  CHECK(describe_ranks({3, 5, 6}) == "ranks 3, 5 and 6");
}

TEST_CASE("what a ring has forgotten is not missing", "[flight]") {
  CHECK(findings({rank_at(0, "ab?"), rank_at(1, "ab?", 100)}, 2).rfind("#101", 0) == 0);  // rank 0 is behind
  CHECK(findings({rank_at(0, "aab?", 98), rank_at(1, "b?", 100)}, 2) == "");
}

TEST_CASE("other groups and messages between two ranks do not count", "[flight]") {
  auto first = rank_at(0, "ab?"), second = rank_at(1, "ab?");
  first.collectives.push_back(rank_at(0, "a?").collectives[0]);
  first.collectives.back().sequence = 0;
  second.collectives.push_back(rank_at(1, "a?", 3).collectives[0]);
  second.collectives.back().group = "other";
  CHECK(findings({first, second}, 2) == "");
}

TEST_CASE("why a collective failed is told from the first cause that is known", "[flight]") {
  const auto came = [](int rank, bool answers = true, const std::string& failure = "") {
    return flight_of(rank, {call_of(2)}, answers, failure);
  };
  CHECK(why({kThisRank, flight_of(1, {call_of(1)}), came(2)}) ==
        "rank 1 did not arrive within 30.0 s: it is at #1 (all_reduce of 5 float, started)");
  CHECK(why({kThisRank, flight_of(1, {call_of(2, "reduce")}), came(2)}) ==
        "rank 1 called reduce of 5 float while this rank made that call");
  CHECK(why({kThisRank, came(1), came(2)}) == "all ranks made this call, and it failed after 30.0 s");
  // They came, but have ended since; who only failed because of that is not named.
  CHECK(why({kThisRank, came(1, true, "connection lost"), came(2, false)}) ==
        "rank 2 has ended or does not answer");
  CHECK(why({kThisRank, came(1)}) == "rank 2 has ended or does not answer");
  CHECK(why({kThisRank, came(1, true, "no luck"), came(2)}) == "rank 1 has failed: no luck");
  // The ranks parted at an earlier call, which went through on this rank.
  CHECK(why({flight_of(0, {call_of(1, "broadcast"), call_of(2)}), flight_of(1, {call_of(1), call_of(2)}),
             flight_of(2, {call_of(1, "broadcast"), call_of(2)})}) ==
        "the ranks diverged earlier, at #1 (broadcast of 5 float): rank 1 called all_reduce of 5 float "
        "instead");
}

TEST_CASE("of a message between two ranks, where the other one stands is told", "[flight]") {
  const auto why_of = [](const std::string& op, int peer, const std::vector<RankFlight>& flights) {
    auto call = call_of(0, op);
    call.peer = peer;
    return why_it_failed(call, kWaited, 0, {0, 2, 3}, flights, false);
  };
  const auto other = flight_of(3, {call_of(1)});
  CHECK(why_of("recv", 2, {kThisRank, other}) ==
        "rank 3 did not send it within 30.0 s: it is at #1 (all_reduce of 5 float, started)");
  CHECK(why_of("send", 2, {kThisRank, flight_of(3, {})}) ==
        "rank 3 did not take it within 30.0 s: it is before its first collective");
  CHECK(why_of("recv", 1, {kThisRank, other}) == "rank 2 has ended or does not answer");
  CHECK(why_of("recv", -1, {kThisRank, other}) == "no rank sent it within 30.0 s");
}

TEST_CASE("without the store what was known before is told", "[flight]") {
  CHECK(why({kThisRank}, true) == "rank 0, which keeps the store, has ended or does not answer");
  CHECK(why({kThisRank, flight_of(0, {call_of(2)}, true, "no luck")}, true) ==
        "rank 0, which keeps the store, has failed: no luck");
  CHECK(why({kThisRank, flight_of(1, {call_of(1)}), flight_of(2, {call_of(2, "reduce")})}, true) ==
        "rank 0, which keeps the store, has ended or does not answer; "
        "rank 2 called reduce of 5 float while this rank made that call");
}

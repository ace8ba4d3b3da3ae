#include <ddprun/flight/flight_analysis.h>

#include "tests/support/catch.h"

using namespace ddprun::ddp;

namespace {

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
        "the ranks diverged earlier, at #1 (broadcast of 5 float): rank 1 called all_reduce of 5 float instead");
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

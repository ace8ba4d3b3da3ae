#include "launcher/status/progress.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using Text = nlohmann::ordered_json;
using namespace std::chrono_literals;

const NodesBoard::Clock::time_point kNow(1h);

Text view_of(int rank, double compute = 0.02) {
  return {{"rank", rank},
          {"pid", 1000 + rank},
          {"state", "running"},
          {"seconds", 100.0},
          {"cpu_seconds", 50.0},
          {"status", {{"step", 1200}}},
          {"pace", {{"steps", 90}, {"step_seconds", 0.1}, {"compute_seconds", compute}}}};
}

TEST_CASE("the board shows the ranks of other nodes with their node, in order", "[nodes_board]") {
  NodesBoard board;
  board.take("b", 0, view_of(3, 0.04).dump(), kNow);
  board.take("a", 0, view_of(2).dump(), kNow);
  const auto ranks = board.ranks(kNow);
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[0]["rank"] == 2);
  CHECK(ranks[1]["node"] == "b");
  CHECK(ranks[1]["status"]["step"] == 1200);
  const auto times = board.own_times(kNow);
  REQUIRE(times.size() == 2);
  CHECK(times[1].rank == 3);
  CHECK(times[1].step == 1200);
  CHECK(times[1].compute == Approx(0.04));
  CHECK(times[1].node == "b");
}

TEST_CASE("a rank's CPU share is of the time since the summary before", "[nodes_board]") {
  NodesBoard board;
  Text view = view_of(2);
  board.take("b", 0, view.dump(), kNow);
  CHECK(board.ranks(kNow)[0]["cpu_percent"] == Approx(50));
  view["seconds"] = 102.0;
  view["cpu_seconds"] = 53.0;
  board.take("b", 0, view.dump(), kNow);
  CHECK(board.ranks(kNow)[0]["cpu_percent"] == Approx(150));
}

TEST_CASE("a new round begins an empty board, and an old one is over", "[nodes_board]") {
  NodesBoard board;
  board.take("b", 1, view_of(2).dump(), kNow);
  board.take("b", 2, view_of(1).dump(), kNow);
  board.take("b", 1, view_of(3).dump(), kNow);
  REQUIRE(board.ranks(kNow).size() == 1);
  CHECK(board.ranks(kNow)[0]["rank"] == 1);
}

TEST_CASE("a rank that nobody speaks of is forgotten", "[nodes_board]") {
  NodesBoard board;
  board.take("b", 0, view_of(2).dump(), kNow);
  CHECK(board.ranks(kNow + 5s).size() == 1);
  CHECK(board.ranks(kNow + 1min).empty());
  CHECK(board.own_times(kNow + 1min).empty());
}

TEST_CASE("what is no view of a rank is ignored", "[nodes_board]") {
  NodesBoard board;
  const auto with = [](const char* path, const Text& value) {
    Text view = view_of(2);
    view[Text::json_pointer(path)] = value;
    return view.dump();
  };
  for (const std::string& text :
       {std::string(), std::string("nonsense"), std::string("[]"), std::string("{}"), std::string(5000, '['),
        with("/rank", -1), with("/rank", 1.5), with("/rank", 1e300), with("/pid", "x"), with("/state", 7),
        with("/status", "x"), with("/status/step", -5), with("/pace", 1), with("/pace/steps", "many")})
    board.take("b", 0, text, kNow);
  CHECK(board.ranks(kNow).empty());
  board.take("b", 0, with("/other", {1, 2}), kNow);
  CHECK(board.ranks(kNow).size() == 1);
  CHECK_FALSE(board.ranks(kNow)[0].contains("other"));
}

}  // namespace
}  // namespace ddprun::launcher

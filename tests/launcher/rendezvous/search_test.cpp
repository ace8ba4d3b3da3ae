#include "launcher/rendezvous/membership.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using Answer = Search::Answer;

const Endpoint kA{"a", 1}, kB{"b", 1}, kC{"c", 1};
constexpr Search::Time kStart = Search::Time() + 1h;

Search search(std::vector<Endpoint> endpoints, std::optional<Endpoint> former = {}) {
  return {{std::move(endpoints), std::move(former), kStart, 60s, 5s}, kStart};
}

TEST_CASE("a node asks all endpoints at once, and again after pauses of up to a second", "[search]") {
  Search three = search({kA, kB, kC});
  for (const auto pause : {50ms, 100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms}) {
    for (const Endpoint& endpoint : {kA, kB}) {
      CHECK(three.endpoint() == endpoint);
      CHECK_FALSE(three.is_last());
      CHECK(three.answered(Answer::kRefused, kStart).pause == 0ms);
    }
    CHECK(three.is_last());
    CHECK(three.answered(Answer::kRefused, kStart).pause == pause);
    CHECK(three.asked_all());
  }
}

TEST_CASE("a node that finds no coordinator says so once, and gives up in time", "[search]") {
  Search one = search({kA});
  CHECK_FALSE(one.answered(Answer::kSilent, kStart + 2999ms).tells);
  CHECK(one.answered(Answer::kSilent, kStart + 3s).tells);
  CHECK_FALSE(one.answered(Answer::kSilent, kStart + 9s).tells);
  CHECK_FALSE(one.answered(Answer::kSilent, kStart + 59s).gives_up);
  CHECK(one.answered(Answer::kSilent, kStart + 60s).gives_up);
  Search later({{kA}, {}, kStart - 10s, 60s, 5s}, kStart);  // an earlier search has said it
  CHECK_FALSE(later.answered(Answer::kSilent, kStart).tells);
}

TEST_CASE("a coordinator's ddprun has ended if its endpoint refuses the first attempt", "[search]") {
  for (const auto answer : {Answer::kRefused, Answer::kHungUp, Answer::kSilent, Answer::kNotOurs}) {
    Search two = search({kA, kB}, kA);
    two.answered(answer, kStart);
    CHECK(two.nobody_listens() == (answer == Answer::kRefused));
  }
  Search other = search({kA, kB}, kB);
  other.answered(Answer::kRefused, kStart);
  CHECK_FALSE(other.nobody_listens());
}

TEST_CASE("one that accepts an attempt, hangs up and soon refuses the next has ended, too", "[search]") {
  for (const auto& [later, ended] : {std::pair(4999ms, true), {5000ms, false}}) {
    Search one = search({kA}, kA);
    one.answered(Answer::kHungUp, kStart);
    one.answered(Answer::kHungUp, kStart + 50ms);
    one.answered(Answer::kRefused, kStart + later);
    CHECK(one.nobody_listens() == ended);
  }
}

TEST_CASE("what comes after the first answer does not count", "[search]") {
  for (const auto answer : {Answer::kSilent, Answer::kNotOurs}) {
    Search one = search({kA}, kA);
    one.answered(answer, kStart);
    one.answered(Answer::kRefused, kStart);
    CHECK_FALSE(one.nobody_listens());
  }
  Search unasked = search({kA}, kA);  // its name could not be looked up
  unasked.answered(Answer::kUnknown, kStart);
  unasked.answered(Answer::kRefused, kStart);
  CHECK(unasked.nobody_listens());
}

}  // namespace
}  // namespace ddprun::launcher

#include "launcher/rendezvous/admission.h"

#include <random>
#include <string>
#include <vector>

#include "tests/launcher/rendezvous/coordinator_rig.h"

// Who cannot take part in a job, or does not come.

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::ContainsSubstring;
using test::CoordinatorRig;
using test::job;

std::string refusal(CoordinatorRig& rig, const Join& wish) {
  return rig.last<Refused>(rig.join(wish)).reason;
}

TEST_CASE("a node of another run id is refused, naming both", "[admission]") {
  CoordinatorRig rig(job(2, 2));
  Join wish = rig.wish("n1");
  wish.run_id = "other";
  CHECK(refusal(rig, wish) == "node n1 (10.0.0.1) has run id 'other', the coordinator has 'job' (--rdzv-id)");
}

TEST_CASE("a node that says nothing of the run id takes part", "[admission]") {
  CoordinatorRig rig(job(2, 2));
  Join wish = rig.wish("n1");
  CHECK(rig.count<Waiting>(rig.join(wish)) == 1);
  wish.run_id = "job";
  CHECK(rig.count<Waiting>(rig.join(wish)) == 1);
}

TEST_CASE("a node with another count of nodes is refused, naming both", "[admission]") {
  CoordinatorRig fixed(job(2, 2));
  Join wish = fixed.wish("n1");
  wish.max_nodes = 3;
  CHECK(refusal(fixed, wish) == "node n1 (10.0.0.1) has --nnodes=2:3, the coordinator has --nnodes=2");
  CoordinatorRig elastic(job(2, 4));
  wish.min_nodes = 3;
  CHECK(refusal(elastic, wish) == "node n1 (10.0.0.1) has --nnodes=3, the coordinator has --nnodes=2:4");
}

TEST_CASE("a node rank that the job does not have is refused", "[admission]") {
  CoordinatorRig rig(job(2, 3));
  CHECK(refusal(rig, rig.wish_of_rank("n1", 3)) == "node n1 (10.0.0.1) has --node-rank=3: expected 0 to 2");
  CHECK_THAT(refusal(rig, rig.wish_of_rank("n1", -1)), ContainsSubstring("has --node-rank=-1: expected"));
  CHECK(rig.count<Waiting>(rig.join(rig.wish_of_rank("n1", 2))) == 1);
}

TEST_CASE("a node rank that is taken is refused, naming both nodes", "[admission]") {
  CoordinatorRig rig(job(2, 2));
  const auto first = rig.join(rig.wish_of_rank("n1", 1));
  CHECK(refusal(rig, rig.wish_of_rank("n2", 1)) ==
        "node rank 1 is wanted by node n2 (10.0.0.2) and taken by node n1 (10.0.0.1)");
  rig.lose(first);
  CHECK(rig.count<Waiting>(rig.join(rig.wish_of_rank("n2", 1))) == 1);
}

TEST_CASE("a number of workers that cannot be added up is refused", "[admission]") {
  CoordinatorRig rig(job(2, 2));
  CHECK(refusal(rig, rig.wish("n1", 0)) ==
        "node n1 (10.0.0.1) would start 0 workers: expected a number from 1 to 1073741823");
  rig.join(rig.wish("n1", 1'073'741'823));
  const auto last = rig.join(rig.wish("n2", 1'073'741'823));
  rig.obey();
  CHECK(rig.last<Start>(last).world_size == 2'147'483'646);
  CHECK(rig.count<Refused>(rig.join(rig.wish("n3", 1'073'741'824))) == 1);
}

TEST_CASE("a refused node is not heard again on its connection", "[admission]") {
  CoordinatorRig rig(job(2, 2));
  const auto id = rig.join(rig.wish_of_rank("n1", 2));
  rig.say(id, rig.wish("n1"));
  rig.say(id, Leading{0, 1234});
  rig.lose(id);
  CHECK(rig.messages_to(id) == 1);
  CHECK(rig.last<Waiting>(rig.join("n1")).present == 1);
}

TEST_CASE("anything but a Join from an unknown connection is ignored", "[admission]") {
  CoordinatorRig rig(job(1, 2));
  for (const NodeMessage& message :
       {NodeMessage(Leading{0, 1}), NodeMessage(Succeeded{0}), NodeMessage(Ended{0}), NodeMessage(Failed{}),
        NodeMessage(Leave{15}), NodeMessage(Beat{})})
    rig.say(5, message);
  CHECK(rig.messages_to(5) == 0);
  CHECK_FALSE(rig.ended());
}

TEST_CASE("names from the network are shown harmless and short", "[admission]") {
  CoordinatorRig rig(job(2, 2));
  Join wish = rig.wish("a\x1b[2J\nb" + std::string(1000, 'x'));
  wish.address = std::string(1000, 'y') + "\n";
  wish.run_id = "\x1b]0;title\x07";
  const std::string text = refusal(rig, wish);
  CHECK_THAT(text, ContainsSubstring("node a?[2J?bxxx") && ContainsSubstring("run id '?]0;title?'"));
  CHECK(text.size() < 300);
}

/// What all nodes are told when the join timeout is over.
std::string too_late(CoordinatorRig& rig, CoordinatorRig::Id node) {
  rig.pass(599'999ms);
  CHECK_FALSE(rig.ended());
  rig.pass(1ms);
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 125);
  CHECK(rig.last<End>(node).reason == rig.ended()->reason);
  CHECK(rig.last<End>(node).exit_code == 125);
  return rig.ended()->reason;
}

TEST_CASE("the join timeout says who came and which node ranks are missing", "[admission]") {
  CoordinatorRig rig(job(6, 6));
  rig.join(rig.wish_of_rank("n4", 4));
  const auto id = rig.join(rig.wish_of_rank("n1", 1));
  CHECK(too_late(rig, id) ==
        "only 2 of 6 nodes joined within 600 s (--join-timeout): n4 (10.0.0.1), n1 (10.0.0.2); missing: node "
        "ranks 0, 2-3, 5");
}

TEST_CASE("the join timeout names missing nodes where names are known", "[admission]") {
  auto settings = job(3, 3);
  settings.names = {"n1", "n2", "n3"};
  const bool spare = GENERATE(false, true);
  settings.spares = spare ? 1 : 0;
  CoordinatorRig rig(settings);
  const auto id = rig.join(rig.wish_of_rank("n2", 1));
  if (spare) rig.join("n4");
  CHECK(too_late(rig, id) ==
        (spare ? "only 2 of 3 nodes joined within 600 s (--join-timeout): n2 (10.0.0.1), n4 (10.0.0.2)"
               : "only 1 of 3 nodes joined within 600 s (--join-timeout): n2 (10.0.0.1)") +
            std::string("; missing: n1 (node rank 0), n3 (node rank 2)"));
}

TEST_CASE("the join timeout names no ranks where not all nodes have one", "[admission]") {
  CoordinatorRig without(job(2, 2));
  const auto a = without.join("a");
  CHECK(too_late(without, a) == "only 1 of 2 nodes joined within 600 s (--join-timeout): a (10.0.0.1)");
  CoordinatorRig mixed(job(3, 3));
  mixed.join("a");
  const auto b = mixed.join(mixed.wish_of_rank("b", 0));
  CHECK(too_late(mixed, b) ==
        "only 2 of 3 nodes joined within 600 s (--join-timeout): a (10.0.0.1), b (10.0.0.2)");
  CoordinatorRig elastic(job(2, 3));
  const auto c = elastic.join(elastic.wish_of_rank("c", 2));
  CHECK(too_late(elastic, c) ==
        "only 1 of at least 2 nodes joined within 600 s (--join-timeout): c (10.0.0.1)");
}

TEST_CASE("a node that runs another program belongs to another job, unless a run id says otherwise",
          "[admission]") {
  auto settings = job(2, 2);
  settings.program = "train.py --lr 1";
  CoordinatorRig rig(settings);
  Join other = rig.wish("a"), same = rig.wish("b"), with_id = rig.wish("c");
  other.program = "sh -c 'exit 7'";
  same.program = "train.py --lr 1";
  with_id.run_id = "job";
  CHECK_THAT(rig.last<Refused>(rig.join(other)).reason,
             ContainsSubstring("runs 'sh -c 'exit 7'', the coordinator's job runs 'train.py --lr 1'"));
  rig.join(same);
  rig.join(with_id);
  rig.obey();
  CHECK(rig.round_of(2) == 0);
}

TEST_CASE("the join timeout of a job without nodes ends it too", "[admission]") {
  CoordinatorRig rig(job(2, 2));
  rig.pass(600s);
  REQUIRE(rig.ended());
  CHECK(rig.ended()->reason == "only 0 of 2 nodes joined within 600 s (--join-timeout): none");
}

TEST_CASE("the join timeout names few of many nodes", "[admission]") {
  auto settings = job(5000, 5000);
  settings.names.assign(5000, std::string(1000, 'n'));
  CoordinatorRig rig(settings);
  for (int i = 0; i < 2000; ++i) rig.join(rig.wish_of_rank(std::string(1000, 'a'), 2 * i));
  const std::string text = too_late(rig, 1);
  CHECK_THAT(text, ContainsSubstring("2000 of 5000 nodes") &&
                       ContainsSubstring(" and 1992 more; missing: ") && ContainsSubstring(" and 2992 more"));
  CHECK(text.size() < 4096);
}

TEST_CASE("natural order is that of people", "[natural_order]") {
  const std::vector<std::string> sorted = {"",
                                           "-1",
                                           "0",
                                           "00",
                                           "1",
                                           "01",
                                           "2",
                                           "10",
                                           "a",
                                           "a0",
                                           "a1",
                                           "a01",
                                           "a1b",
                                           "a1b2",
                                           "a1b10",
                                           "a2",
                                           "a10",
                                           "a99999999999999999999999998",
                                           "a99999999999999999999999999",
                                           "a100000000000000000000000000",
                                           "b",
                                           "n1-r2",
                                           "n1-r10",
                                           "n2-r1",
                                           "node2",
                                           "node10.x"};
  for (std::size_t i = 0; i < sorted.size(); ++i)
    for (std::size_t j = 0; j < sorted.size(); ++j) {
      INFO("'" << sorted[i] << "' < '" << sorted[j] << "'");
      CHECK(natural_less(sorted[i], sorted[j]) == (i < j));
    }
}

/// Few letters, so that digits meet digits and names often begin alike.
std::string random_name(std::mt19937& random) {
  static const std::string letters = "00129a-\xff";
  std::string name(random() % 7, ' ');
  for (char& letter : name) letter = letters[random() % letters.size()];
  return name;
}

TEST_CASE("natural order is a strict weak order in which only equal names are equivalent",
          "[natural_order]") {
  const unsigned seed = 20;
  std::mt19937 random(seed);
  for (int i = 0; i < 100'000; ++i) {
    const std::string a = random_name(random), b = random_name(random), c = random_name(random);
    const bool ab = natural_less(a, b), ba = natural_less(b, a), bc = natural_less(b, c);
    const bool holds = (ab != ba || a == b) && !(ab && ba) && (!(ab && bc) || natural_less(a, c));
    INFO("'" << a << "', '" << b << "', '" << c << "', triple " << i << " of seed " << seed);
    if (!holds) FAIL("no strict weak order");
  }
}

}  // namespace
}  // namespace ddprun::launcher

#include "launcher/rendezvous/election.h"

#include <chrono>
#include <string>
#include <vector>

#include "tests/launcher/rendezvous/coordinator_rig.h"

// etcd decides who has the coordinator, and a round begins once etcd has its record.

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::ContainsSubstring;
using test::CoordinatorRig;
using Kind = ElectionStep::Kind;

const Endpoint kOld{"10.0.0.1", 1}, kNew{"10.0.0.2", 2};

ElectionState state_with(bool coordinator, bool record) {
  ElectionState state;
  if (coordinator) state.coordinator = ElectedCoordinator{"old", kOld};
  if (record) state.record = RoundRecord{{4, 2}, {"old", "member"}};
  if (record) state.recorded_by = {"old", kOld};
  return state;
}

/// A node that looks for its coordinator; refused: nothing listens where that was, for long.
Candidate node(const std::string& id, bool refused = false) {
  Candidate candidate{id, id == "member"};
  if (refused) candidate.refused = kOld;
  candidate.refused_long = refused;
  return candidate;
}

TEST_CASE("while etcd has a coordinator, nodes ask it", "[election]") {
  const bool has_record = GENERATE(false, true);
  const ElectionState state = state_with(true, has_record);
  for (const char* id : {"member", "new"}) {
    CHECK(next_step(state, node(id)).kind == Kind::kAsk);
    CHECK(next_step(state, node(id)).endpoint == kOld);
  }
  CHECK(next_step(state, node("old")).kind == Kind::kCampaign);  // it was this node, in an earlier try
  CHECK(next_step(state, node("new", /*refused=*/true)).kind == Kind::kAsk);  // until its lease has expired
}

TEST_CASE("a member replaces a coordinator whose ddprun has ended at once", "[election]") {
  Candidate member = node("member", /*refused=*/true);
  member.refused_long = false;
  CHECK(next_step(state_with(true, true), member).kind == Kind::kCampaign);
  member.refused = kNew;
  CHECK(next_step(state_with(true, true), member).kind == Kind::kAsk);
}

TEST_CASE("only who can end the last round's steps may go on after it", "[election]") {
  const ElectionState state = state_with(false, true);
  CHECK(next_step(state, node("member")).kind == Kind::kCampaign);
  CHECK(next_step(state, node("new")).kind == Kind::kAsk);
  CHECK(next_step(state, node("new")).endpoint == kOld);  // it may run there, cut off from etcd
  CHECK(next_step(state, node("new", /*refused=*/true)).kind == Kind::kCampaign);
  Candidate fresh = node("new", /*refused=*/true);
  fresh.refused_long = false;  // it may be about to tell etcd that the job has ended
  CHECK(next_step(state, fresh).kind == Kind::kAsk);
  Candidate done = node("member");
  done.has_succeeded = true;  // the others do not need it any more
  CHECK(next_step(state, done).kind == Kind::kAsk);
}

TEST_CASE("without keys a new node begins a job, and one that was in it knows that it has ended",
          "[election]") {
  CHECK(next_step({}, node("new")).kind == Kind::kCampaign);
  CHECK(next_step({}, node("member")).kind == Kind::kOver);
  Candidate guest = node("new");
  guest.may_host = false;
  CHECK(next_step({}, guest).kind == Kind::kWait);
}

TEST_CASE("what etcd keeps is read back, and nothing else is taken for it", "[election]") {
  const RoundRecord record{{4, 2, 0, 1, false, 2}, {"a", "b"}};
  const ElectedCoordinator by{"a", {"::1", 7}};
  EtcdClient::Snapshot keys{{{encode(by, "node-a"), 8}, {encode(record, by), 9}}, 10};
  const ElectionState state = decode(keys, "/ddprun/job");
  CHECK(state.coordinator == by);
  CHECK(state.recorded_by == by);
  CHECK(state.record == record);
  CHECK(state.coordinator_revision == 8);
  CHECK(state.record_revision == 9);
  CHECK(state.revision == 10);
  keys.values[0] = {};
  CHECK_FALSE(decode(keys, "/ddprun/job").coordinator);
  for (const char* text : {"", "[]", "{}", R"({"id": "a", "endpoint": "b"})",
                           R"({"id": "a", "endpoint": "b:1", "number": -1, "nodes": 2, "restarts": 0,
                               "restarts_used": 0, "members": []})"}) {
    keys.values[1].text = text;
    CHECK_THROWS_WITH(decode(keys, "/ddprun/job"),
                      ContainsSubstring("its key '/ddprun/job/round' is not of"));
  }
}

CoordinatorSettings elected(int min_nodes, int max_nodes) {
  CoordinatorSettings settings = test::job(min_nodes, max_nodes, 3);
  settings.elected = settings.has_successors = true;
  return settings;
}

CoordinatorRig::Id join(CoordinatorRig& rig, const std::string& name, int former = -1) {
  Join wish = rig.wish(name);
  wish.id = name;
  if (former >= 0) wish.former = {former, 3, name[0] - 'a'};
  return rig.join(wish);
}

TEST_CASE("a round begins once etcd has its record", "[election]") {
  CoordinatorRig rig(elected(1, 2));
  const auto a = join(rig, "a"), b = join(rig, "b");
  CHECK_FALSE(rig.take_record());  // its leader has no port yet
  rig.obey();
  const auto record = rig.take_record();
  REQUIRE(record);
  CHECK(*record == RoundRecord{{0, 2}, {"a", "b"}});
  CHECK_FALSE(rig.take_record());
  rig.recorded(7);  // another one
  CHECK(rig.count<Start>(a) == 0);
  rig.recorded(0);
  CHECK(rig.round_of(a) == 0);
  CHECK(rig.round_of(b) == 0);
  rig.recorded(0);  // again
  CHECK(rig.count<Start>(a) == 1);
}

TEST_CASE("a round whose node is lost before etcd has its record never begins", "[election]") {
  CoordinatorRig rig(elected(1, 2));
  const auto a = join(rig, "a"), b = join(rig, "b");
  rig.obey();
  rig.lose(b);
  rig.recorded(0);
  CHECK(rig.count<Start>(a) == 0);
  rig.pass(30s);
  rig.obey();
  CHECK(rig.take_record() == RoundRecord{{1, 1}, {"a"}});
  rig.recorded(1);
  CHECK(rig.round_of(a) == 1);
}

TEST_CASE("one node of the last round is enough for a coordinator that etcd has elected", "[election]") {
  CoordinatorSettings settings = elected(1, 3);
  settings.former = {5, 3, 0, 1, false, 1};  // the one that is lost may have begun it for others only
  settings.lost_at = CoordinatorRig(settings).now();
  CoordinatorRig rig(settings);
  const auto b = join(rig, "b", /*former=*/4);
  rig.pass(30s);
  rig.obey();
  CHECK(rig.take_record() == RoundRecord{{6, 1, 0, 1, false, 1}, {"b"}});
  rig.recorded(6);
  CHECK(rig.round_of(b) == 6);
  CHECK(rig.last<Start>(b).restart_count == 1);
}

TEST_CASE("a coordinator that etcd has elected goes on with less than half of its nodes", "[election]") {
  CoordinatorRig rig(elected(1, 4));
  const auto a = join(rig, "a");
  std::vector<CoordinatorRig::Id> others;
  for (const char* name : {"b", "c", "d"}) others.push_back(join(rig, name));
  rig.obey();
  rig.recorded(0);
  REQUIRE(rig.round_of(a) == 0);
  for (const auto id : others) rig.lose(id);
  rig.obey();
  CHECK_FALSE(rig.ended());
  rig.pass(10s);
  rig.obey();
  rig.recorded(1);
  CHECK(rig.round_of(a) == 1);
}

TEST_CASE("no round is stopped for nodes that join while etcd does not answer", "[election]") {
  CoordinatorSettings settings = elected(1, 2);
  settings.last_call = 0s;
  CoordinatorRig rig(settings);
  const auto a = join(rig, "a");
  rig.obey();
  rig.recorded(0);
  REQUIRE(rig.round_of(a) == 0);
  rig.set_reaches_etcd(false);
  join(rig, "b");
  rig.pass(20s);
  CHECK(rig.count<Stop>(a) == 0);
  rig.set_reaches_etcd(true);
  rig.pass(20s);
  CHECK(rig.count<Stop>(a) == 1);
}

}  // namespace
}  // namespace ddprun::launcher

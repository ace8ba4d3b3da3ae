#include <csignal>

#include "launcher/rendezvous/coordinator.h"
#include "launcher/rendezvous/membership.h"
#include "tests/launcher/rendezvous/coordinator_rig.h"

// A coordinator takes the place of a lost one.

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::ContainsSubstring;
using test::CoordinatorRig;
using test::job;

/// A node that was in a round of so many nodes.
Join returning(const CoordinatorRig& rig, const std::string& name, int nodes, bool nobody_listens = false,
               int round = 4) {
  Join join = rig.wish(name);
  join.former = {round, nodes, name[0] - 'a', 1, nobody_listens, 1};
  return join;
}

CoordinatorSettings with_successors(CoordinatorSettings settings) {
  settings.has_successors = true;
  return settings;
}

TEST_CASE("a node that claims a round without nodes keeps no others from beginning", "[takeover]") {
  CoordinatorRig rig(job(2, 2, 3));
  rig.join(returning(rig, "a", 0, /*nobody_listens=*/true, 0));
  rig.join(rig.wish("b"));
  CHECK_NOTHROW(rig.obey());
}

TEST_CASE("more than half of the last round's nodes go on without their coordinator", "[takeover]") {
  CoordinatorRig rig(job(1, 4, 3));
  const auto b = rig.join(returning(rig, "b", 4));
  const auto c = rig.join(returning(rig, "c", 4));
  rig.pass(15s);
  rig.obey();
  CHECK(rig.count<Lead>(b) == 0);  // a half may be on either side
  const auto d = rig.join(returning(rig, "d", 4));
  rig.obey();
  for (const auto id : {b, c, d}) CHECK(rig.round_of(id) == 5);
  CHECK(rig.last<Start>(d).world_size == 3);
  CHECK(rig.last<Start>(d).restart_count == 1);
}

TEST_CASE("restarts that --restart-window has forgotten stay forgotten", "[takeover]") {
  const bool forgotten = GENERATE(true, false);
  CoordinatorRig rig(job(2, 2, 1));
  for (const char* name : {"b", "c"}) {
    Join join = returning(rig, name, 2);
    if (forgotten) join.former.restarts_used = 0;
    rig.join(join);
  }
  rig.obey();
  CHECK(rig.last<Start>(1).restart_count == 2);
  CHECK(rig.last<Start>(1).restarts_used == (forgotten ? 1 : 2));
}

TEST_CASE("a node that comes twice counts once", "[takeover]") {
  CoordinatorRig rig(job(1, 3, 3));
  const auto b = rig.join(returning(rig, "b", 3));
  rig.join(returning(rig, "b", 3));
  rig.pass(30s);
  rig.obey();
  CHECK(rig.round_of(b) == -1);
}

TEST_CASE("a new coordinator waits a little for those that are to come", "[takeover]") {
  CoordinatorRig rig(job(1, 5, 3));
  for (const char* name : {"b", "c", "d"}) rig.join(returning(rig, name, 5));
  rig.obey();
  CHECK(rig.round_of(1) == -1);
  const auto e = rig.join(returning(rig, "e", 5));
  rig.pass(10s);
  rig.obey();
  CHECK(rig.last<Start>(e).group_world_size == 4);
  CHECK(rig.count<Stop>(1) == 0);
}

TEST_CASE("a coordinator whose program has ended has no vote", "[takeover]") {
  const bool nobody_listens = GENERATE(true, false);
  CoordinatorRig rig(job(1, 2, 3));
  const auto b = rig.join(returning(rig, "b", 2, nobody_listens));
  rig.obey();
  CHECK(rig.round_of(b) == (nobody_listens ? 5 : -1));
}

TEST_CASE("a new coordinator that waits in vain for the last round's nodes resigns", "[takeover]") {
  CoordinatorRig rig(job(1, 4, 3));
  const auto b = rig.join(returning(rig, "b", 4));
  rig.join(returning(rig, "c", 4));
  rig.pass(19s);
  CHECK_FALSE(rig.resigned());
  rig.pass(2s);
  CHECK(rig.resigned());
  CHECK_FALSE(rig.ended());
  const auto d = rig.join(returning(rig, "d", 4));
  rig.obey();
  CHECK(rig.messages_to(d) == 0);
  CHECK(rig.round_of(b) == -1);
}

TEST_CASE("a new coordinator with enough of the last round's nodes waits for others", "[takeover]") {
  CoordinatorRig rig(job(3, 3, 3));
  rig.join(returning(rig, "b", 3));
  const auto c = rig.join(returning(rig, "c", 3));
  rig.pass(500s);
  CHECK_FALSE(rig.resigned());
  rig.join("again");
  rig.obey();
  CHECK(rig.round_of(c) == 5);
}

TEST_CASE("nodes that have waited for each other since the loss give up in the end", "[takeover]") {
  auto settings = job(1, 2, 3);
  settings.lost_at = CoordinatorRig(settings).now() - 590s;
  CoordinatorRig rig(settings);
  rig.join(returning(rig, "b", 2));
  CHECK_FALSE(rig.ended());
  rig.pass(11s);
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 125);
  CHECK_THAT(rig.ended()->reason,
             ContainsSubstring(
                 "cannot take the lost coordinator's place: 1 of the last round's 2 nodes came within"));
}

TEST_CASE("nodes of an earlier round and new ones do not count", "[takeover]") {
  CoordinatorRig rig(job(1, 4, 3));
  rig.join("new");
  rig.join(returning(rig, "old", 3, false, 3));
  const auto b = rig.join(returning(rig, "b", 3));
  rig.pass(15s);
  rig.obey();
  CHECK(rig.round_of(b) == -1);
  rig.join(returning(rig, "c", 3));
  rig.obey();
  CHECK(rig.last<Start>(b).group_world_size == 4);
}

TEST_CASE("a node that missed rounds cannot go on alone when it loses the next coordinator, too",
          "[takeover]") {
  // a had the coordinator, and c was cut off from it after a round of the two. c is back, a has ended, and
  // b's goes on.
  CoordinatorRig next(with_successors(job(1, 4, 3)));
  const auto b = next.join(returning(next, "b", 3, true, 2));
  const auto d = next.join(returning(next, "d", 3, true, 2));
  const auto c = next.join(returning(next, "c", 2, false, 0));
  next.obey();
  REQUIRE(next.round_of(d) == 3);
  CHECK(next.round_of(c) == -1);
  next.lose(c);  // before it takes part
  next.pass(100s);
  CHECK(next.round_of(b) == 3);
  CHECK_FALSE(next.ended());
  // c cannot tell whether b's has ended: it was in no round of it.
  CoordinatorRig alone(with_successors(job(1, 4, 3)));
  const auto again = alone.join(returning(alone, "c", 2, false, 0));
  alone.pass(19s);
  alone.obey();
  CHECK(alone.round_of(again) == -1);
  alone.pass(2s);
  CHECK(alone.resigned());
}

TEST_CASE("a spare takes the place of the node that had the coordinator", "[takeover]") {
  auto settings = job(3, 3);
  settings.spares = 1;
  CoordinatorRig rig(settings);
  rig.join("spare");
  rig.join(returning(rig, "b", 3));
  const auto c = rig.join(returning(rig, "c", 3));
  rig.obey();
  CHECK(rig.last<Start>(c).group_world_size == 3);
  CHECK_FALSE(rig.ended());
}

TEST_CASE("in a job of a fixed size the lost node costs a restart", "[takeover]") {
  CoordinatorRig rig(job(3, 3, 2));
  rig.join(returning(rig, "b", 3));
  const auto c = rig.join(returning(rig, "c", 3));
  rig.join("again");
  rig.obey();
  REQUIRE(rig.round_of(c) == 5);
  rig.say(c, test::failed(7, 5));
  REQUIRE(rig.ended());
  CHECK(rig.ended()->exit_code == 7);
}

TEST_CASE("a coordinator with fewer than half of its nodes ends, as the others may go on", "[takeover]") {
  const bool successors = GENERATE(true, false);
  auto settings = job(1, 4);
  settings.has_successors = successors;
  CoordinatorRig rig(settings);
  const auto ids = rig.form({"a", "b", "c", "d"});
  rig.lose(ids[2]);
  rig.lose(ids[3]);
  CHECK_FALSE(rig.ended());
  rig.lose(ids[1]);
  CHECK(rig.ended().has_value() == successors);
  if (!successors) return;
  CHECK(rig.ended()->exit_code == 125);
  CHECK_THAT(rig.ended()->reason, ContainsSubstring("may go on with another coordinator"));
}

TEST_CASE("nodes whose users end them are not missed", "[takeover]") {
  CoordinatorRig rig(with_successors(job(1, 4)));
  const auto ids = rig.form({"a", "b", "c", "d"});
  for (const std::size_t i : {1U, 2U, 3U}) rig.say(ids[i], Leave{SIGTERM});
  rig.obey();
  CHECK_FALSE(rig.ended());
}

TEST_CASE("new nodes do not outvote those that were silent before they came", "[takeover]") {
  CoordinatorRig rig(with_successors(job(1, 8)));
  const auto ids = std::vector{rig.join("a"), rig.join("b"), rig.join("c")};
  rig.pass(30s);
  rig.obey();
  rig.pass(60s);
  for (const char* name : {"d", "e", "f", "g", "h"}) rig.join(name);  // b and c hear no more
  rig.obey();
  REQUIRE(rig.round_of(ids[0]) == 1);
  rig.lose(ids[1]);
  CHECK_FALSE(rig.ended());
  rig.lose(ids[2]);
  CHECK(rig.ended());
}

TEST_CASE("a node that has not begun a new round counts in the one before, however late it is lost",
          "[takeover]") {
  const bool begins = GENERATE(true, false);
  CoordinatorRig rig(with_successors(job(1, 5)));
  const auto ids = rig.form({"a", "b", "c", "d", "e"});
  rig.pass(10s);
  if (!begins) rig.deaf = {ids[2]};
  rig.lose(ids[4]);
  rig.lose(ids[3]);
  rig.obey();
  REQUIRE(rig.round_of(ids[2]) == 1);
  rig.pass(100s);  // the connection carries nothing to c, but what c says
  rig.lose(ids[2]);
  // c would name round 0 to another coordinator, as d and e do: three of five.
  CHECK(rig.ended().has_value() == !begins);
}

TEST_CASE("a node that comes again takes the place of its connection before", "[takeover]") {
  auto settings = job(2, 2, 1);
  settings.spares = 1;
  CoordinatorRig rig(settings);
  const auto wish = [&](const std::string& name) {
    Join join = rig.wish(name);
    join.id = "ddprun of " + name;
    return join;
  };
  rig.join(wish("a"));
  const auto b = rig.join(wish("b")), c = rig.join(wish("c"));
  rig.obey();
  REQUIRE(rig.round_of(b) == 0);
  const auto again = rig.join(wish("b"));
  CHECK_THAT(rig.last<Refused>(b).reason, ContainsSubstring("its ddprun has connected again"));
  CHECK(rig.count<Refused>(again) == 0);
  rig.obey();
  CHECK(rig.round_of(c) == 1);  // it stood by
  CHECK(rig.last<Waiting>(again).spare);
}

TEST_CASE("a node asks for the coordinator first where one may have taken over", "[takeover]") {
  const Endpoint a{"a", 1}, b{"b", 1}, c{"c", 1};
  CHECK(in_order_of_asking({a}, {}) == std::vector{a});
  CHECK(in_order_of_asking({a, b, c}, {}) == std::vector{b, c, a});
  CHECK(in_order_of_asking({a, b, c}, b) == std::vector{b, c, a});
  CHECK(may_host(0, 1, {}, false, 10s));
  CHECK_FALSE(may_host(0, 3, {}, false, 10s));
  CHECK(may_host(2, 3, {}, false, 10s));
  CHECK_FALSE(may_host(0, 3, 100s, true, 10s));  // it was lost there
  CHECK_FALSE(may_host(1, 3, 0s, false, 10s));
  CHECK(may_host(1, 3, 0s, true, 10s));
  CHECK_FALSE(may_host(2, 3, 19s, true, 10s));
  CHECK(may_host(2, 3, 20s, true, 10s));
}

TEST_CASE("a node whose coordinator is lost looks for the next one while it may take part", "[takeover]") {
  const Endpoint a{"a", 1}, b{"b", 1};
  const Membership::Time begin{}, later = begin + 60s;
  MeetingRules rules;
  RestartSettings restarts;
  const auto in_round = [&](int restarts_used) {
    Membership membership(rules, restarts, {a, b}, begin);
    Start start;
    start.number = 4;
    start.restarts_used = restarts_used;
    membership.take(start, begin);
    return membership;
  };
  CHECK_FALSE(in_round(0).look_again(a, {}, true, false, later));  // no restart is left
  restarts.max_restarts = 1;
  CHECK_FALSE(in_round(0).look_again(a, {}, true, /*ended_here=*/true, later));
  auto member = in_round(0);
  REQUIRE(member.look_again(a, {}, /*hung_up=*/true, /*ended_here=*/false, later));
  CHECK(member.lost() == a);
  CHECK(member.may_have_ended() == a);
  CHECK(member.asking_since() == later);
  CHECK(member.former().number == 4);
  FormerRound told = member.former();
  told.nobody_listens = true;
  REQUIRE(member.look_again(b, told, true, false, later + 1s));  // b has not taken it in
  CHECK(member.lost() == a);
  CHECK_FALSE(member.may_have_ended());
  CHECK(member.former().nobody_listens);

  CHECK_FALSE(in_round(1).look_again(a, {}, true, false, later));
  restarts.window = 60s;
  auto rested = in_round(1);
  REQUIRE(rested.look_again(a, {}, false, false, later));
  CHECK(rested.former().restarts_used == 0);
  CHECK_FALSE(rested.may_have_ended());  // it may only be cut off
  restarts.window.reset();
  rules.spares = 1;
  CHECK(in_round(1).look_again(a, {}, false, false, later));

  Membership alone(rules, restarts, {a}, begin);
  alone.take(Waiting{});
  CHECK_FALSE(alone.look_again(a, {}, true, false, later));
}

TEST_CASE("the first successor has asked silent hosts twice before the second one's turn") {
  CHECK(2 * connect_timeout_after_loss(2s) < 2 * 2s);
  CHECK(connect_timeout_after_loss(2s) == 500ms);
  CHECK(connect_timeout_after_loss(60s) == 5s);
}

/// Node "a" has the coordinator.
std::vector<CoordinatorRig::Id> form_with_ids(CoordinatorRig& rig, const std::vector<std::string>& names) {
  std::vector<CoordinatorRig::Id> ids;
  for (const std::string& name : names) {
    Join join = rig.wish(name);
    join.id = name;
    ids.push_back(rig.join(join));
  }
  rig.obey();
  return ids;
}

TEST_CASE("a coordinator whose node's user ends it hands an elastic job over at once", "[takeover]") {
  CoordinatorRig rig(with_successors(job(1, 3)));
  const auto ids = form_with_ids(rig, {"a", "b", "c"});
  REQUIRE(rig.round_of(ids[1]) == 0);
  CHECK(rig.hand_over("a"));
  for (const auto id : ids)
    CHECK(rig.last<Stop>(id) ==
          Stop{0, "node a received SIGTERM, and another one takes its place", false, {}, SIGTERM});
  rig.obey();
  CHECK_FALSE(rig.hand_over("a"));
  rig.lose(ids[0]);
  rig.pass(200ms);
  CHECK(rig.resigned());
  for (const auto id : {ids[1], ids[2]}) CHECK(rig.last<Stop>(id).hands_over == Handover{});
  for (const auto id : {ids[1], ids[2]}) rig.lose(id);
  rig.pass(100s);
  CHECK_FALSE(rig.ended());
  CHECK_FALSE(rig.hand_over("a"));
}

/// What a member tells the next coordinator after such a Stop, without asking whether that one has ended.
Join returning_after(const CoordinatorRig& rig, const std::string& name, const Start& start,
                     const Stop& stop) {
  MeetingRules rules;
  rules.max_nodes = 2;
  const RestartSettings restarts;
  const Membership::Time begin{};
  Membership membership(rules, restarts, {{"a", 1}, {"b", 1}}, begin);
  membership.take(start, begin);
  membership.take(stop, begin);
  REQUIRE(membership.look_again({"a", 1}, {}, /*hung_up=*/true, /*ended_here=*/false, begin));
  CHECK_FALSE(membership.may_have_ended());
  Join join = rig.wish(name);
  join.former = membership.former();
  return join;
}

TEST_CASE("nodes that leave with the coordinator's are not missed by the rest", "[takeover]") {
  CoordinatorRig rig(with_successors(job(1, 4)));
  const auto ids = form_with_ids(rig, {"a", "b", "c", "d"});
  const bool before = GENERATE(true, false);
  if (before) rig.say(ids[2], Leave{SIGTERM});
  REQUIRE(rig.hand_over("a"));
  if (!before) rig.say(ids[2], Leave{SIGTERM});
  rig.say(ids[3], Leave{SIGTERM});
  rig.obey();
  rig.pass(60s);
  CHECK_FALSE(rig.resigned());  // their workers may still save
  for (const std::size_t i : {0U, 2U, 3U}) rig.lose(ids[i]);
  rig.pass(200ms);
  REQUIRE(rig.resigned());
  REQUIRE(rig.last<Stop>(ids[1]).hands_over == Handover{0, 0, 0});
  REQUIRE(rig.last<Stop>(ids[1]).left == 2);
  CoordinatorRig next(with_successors(job(1, 4)));
  const auto b = next.join(returning_after(next, "b", rig.last<Start>(ids[1]), rig.last<Stop>(ids[1])));
  next.obey();
  CHECK(next.round_of(b) == 1);
}

TEST_CASE("a handover waits until the others' workers have ended: more nodes may leave", "[takeover]") {
  CoordinatorRig rig(with_successors(job(1, 3)));
  const auto ids = form_with_ids(rig, {"a", "b", "c"});
  REQUIRE(rig.hand_over("a"));
  rig.lose(ids[0]);
  rig.say(ids[2], Ended{0});
  rig.pass(5s);
  CHECK_FALSE(rig.resigned());
  CHECK(rig.last<Stop>(ids[2]).hands_over);  // should this host be lost meanwhile
  if (GENERATE(true, false)) {
    rig.say(ids[1], Leave{SIGTERM});
    rig.pass(1s);
    CHECK(rig.last<Stop>(ids[2]).left == 1);
    rig.lose(ids[1]);
  } else {
    rig.say(ids[1], Ended{0});
  }
  rig.pass(1s);
  CHECK(rig.resigned());
}

TEST_CASE("a node whose user ended it is not missed if the coordinator is lost while it saves",
          "[takeover]") {
  const bool two = GENERATE(false, true);
  CoordinatorRig rig(with_successors(job(1, two ? 4 : 3)));
  const auto ids = form_with_ids(
      rig, two ? std::vector<std::string>{"a", "b", "c", "d"} : std::vector<std::string>{"a", "b", "d"});
  for (std::size_t i = 1; i + 1 < ids.size(); ++i) rig.say(ids[i], Leave{SIGTERM});
  CHECK(rig.last<Stop>(ids.back()).left == (two ? 2 : 1));
  MeetingRules rules;
  rules.max_nodes = 2;
  const RestartSettings restarts;
  Membership membership(rules, restarts, {{"a", 1}, {"d", 1}}, {});
  membership.take(rig.last<Start>(ids.back()), {});
  membership.take(rig.last<Stop>(ids.back()), {});
  REQUIRE(membership.look_again({"a", 1}, {}, /*hung_up=*/true, /*ended_here=*/false, {}));
  CoordinatorRig next(with_successors(job(1, 3)));
  Join join = next.wish("d");
  join.former = membership.former();
  join.former.nobody_listens = membership.may_have_ended().has_value();
  const auto d = next.join(join);
  next.obey();
  CHECK(next.round_of(d) == 1);
}

TEST_CASE("once all nodes are back, the next coordinator waits for nobody", "[takeover]") {
  CoordinatorRig rig(with_successors(job(1, 5)));
  const auto ids = form_with_ids(rig, {"a", "b", "c", "d", "e"});
  REQUIRE(rig.hand_over("a"));
  rig.lose(ids[0]);
  rig.obey();
  rig.pass(200ms);
  REQUIRE(rig.resigned());
  CoordinatorRig next(with_successors(job(1, 5)));
  CoordinatorRig::Id last = 0;
  for (std::size_t i = 1; i < ids.size(); ++i)
    last = next.join(returning_after(next, std::string(1, static_cast<char>('a' + i)),
                                     rig.last<Start>(ids[i]), rig.last<Stop>(ids[i])));
  next.obey();
  CHECK(next.round_of(last) == 1);
}

TEST_CASE("an elastic job is handed over also to fewer nodes than it needs, and ends with its last one",
          "[takeover]") {
  CoordinatorRig few(with_successors(job(2, 3)));
  const auto two = form_with_ids(few, {"a", "b"});
  few.pass(30s);
  few.obey();
  REQUIRE(few.hand_over("a"));
  few.lose(two[0]);
  few.obey();
  few.pass(200ms);
  CHECK(few.resigned());
  CHECK_FALSE(few.ended());
  CoordinatorRig none(with_successors(job(2, 3)));
  const auto ids = form_with_ids(none, {"a", "b", "c"});
  REQUIRE(none.hand_over("a"));
  for (const std::size_t i : {1U, 2U}) none.say(ids[i], Leave{SIGTERM});
  none.obey();
  none.pass(200ms);
  REQUIRE(none.ended());
  CHECK(none.ended()->exit_code == 143);
  CHECK(none.ended()->user_signal == SIGTERM);
}

TEST_CASE("a handover during the pause before a restart keeps the restart and its pause", "[takeover]") {
  auto settings = with_successors(job(1, 3, 1));
  settings.restarts.backoff = 5s;
  CoordinatorRig rig(settings);
  const auto ids = form_with_ids(rig, {"a", "b", "c"});
  rig.say(ids[1], test::failed(7));
  rig.obey();
  rig.pass(2s);
  REQUIRE(rig.hand_over("a"));
  rig.pass(200ms);
  REQUIRE(rig.last<Stop>(ids[1]).hands_over == Handover{1, 1, 2800});
  CoordinatorRig next(settings);
  for (const std::size_t i : {1U, 2U})
    next.join(returning_after(next, i == 1 ? "b" : "c", rig.last<Start>(ids[i]), rig.last<Stop>(ids[i])));
  const CoordinatorRig::Id b = 1;
  next.pass(2700ms);
  next.obey();
  CHECK(next.round_of(b) == -1);
  next.pass(200ms);
  next.obey();
  REQUIRE(next.round_of(b) == 1);
  CHECK(next.last<Start>(b).restart_count == 1);
  next.say(b, test::failed(7, 1));
  REQUIRE(next.ended());
  CHECK(next.ended()->exit_code == 7);
}

TEST_CASE("a job that cannot go on without the coordinator's node is not handed over", "[takeover]") {
  CoordinatorRig fixed(with_successors(job(2, 2, 3))), single(job(1, 2)), early(with_successors(job(1, 3)));
  form_with_ids(fixed, {"a", "b"});
  form_with_ids(single, {"a", "b"});
  form_with_ids(early, {"a", "b"});  // has not begun: nobody would take its place
  for (CoordinatorRig* rig : {&fixed, &single, &early}) {
    CHECK_FALSE(rig->hand_over("a"));
    CHECK_FALSE(rig->resigned());
  }
}

TEST_CASE("a new coordinator whose node leaves hands over also before the others have come", "[takeover]") {
  const bool fixed = GENERATE(false, true);
  auto settings = with_successors(fixed ? job(2, 2) : job(1, 3));
  settings.spares = fixed ? 1 : 0;
  CoordinatorRig rig(settings);
  const auto ids = form_with_ids(rig, {"b", "c", "a"});
  if (fixed) REQUIRE(rig.last<Waiting>(ids[2]).spare);  // only then its user can end it
  settings.lost_at = rig.now();
  settings.own_id = "a";
  CoordinatorRig next(settings);
  Join join = next.wish("a");
  join.id = "a";
  if (!fixed) join.former = {0, 3, 0};
  next.join(join);
  Join other = next.wish("b");
  other.former = {0, fixed ? 2 : 3, 0};
  if (fixed) next.join(other);
  REQUIRE(next.hand_over("a"));
  next.pass(300ms);
  CHECK(next.resigned());
  CHECK_FALSE(next.ended());
}

TEST_CASE("a node whose workers cannot start leaves if the job can go on without it", "[takeover]") {
  // running: so many nodes' workers, the first ones; asking: the index of the node
  const auto leaves = [](int min, int max, int spares, std::size_t running, std::size_t asking) {
    auto settings = with_successors(job(min, max));
    settings.spares = spares;
    settings.own_id = "a";
    CoordinatorRig rig(settings);
    const auto ids = form_with_ids(rig, {"a", "b", "c"});
    rig.stuck.insert(ids.begin() + static_cast<std::ptrdiff_t>(running), ids.end());
    if (asking == 0) rig.stuck = {ids[0]};
    rig.pass(30s);
    rig.obey();
    rig.pass(10s);
    rig.say(ids[asking], Drain{0, "", "train: the disk does not answer"});
    if (rig.count<Drained>(ids[asking]) == 0) return false;
    CHECK(rig.last<Drained>(ids[asking]).failed);
    CHECK_THAT(rig.last<Drained>(ids[asking]).reason,
               ContainsSubstring(" leaves the job: train: the disk does not answer"));
    rig.obey();
    rig.say(ids[asking], Ended{0, {}, /*drained=*/true});
    rig.obey();
    const auto stays = ids[asking == 0 ? 1 : 0];
    CHECK(rig.last<Stop>(stays).left ==
          (asking == 0 ? 0 : 1));  // whoever loses the coordinator does not count its node anyway
    CHECK(rig.round_of(stays) == 1);
    return true;
  };
  CHECK_FALSE(leaves(2, 3, 0, 1, 2));
  CHECK(leaves(2, 3, 0, 2, 2));
  CHECK(leaves(2, 3, 0, 2, 0));  // the coordinator's own
  CHECK_FALSE(leaves(3, 3, 0, 2, 2));
  CHECK_FALSE(leaves(2, 2, 1, 0, 1));
  CHECK(leaves(2, 2, 1, 1, 1));
}

TEST_CASE("a coordinator whose node only stands by hands over a job of fixed size", "[takeover]") {
  auto settings = with_successors(job(2, 2));
  settings.spares = 1;
  CoordinatorRig rig(settings);
  const auto ids = form_with_ids(rig, {"b", "c", "a"});
  REQUIRE(rig.round_of(ids[2]) == -1);
  CHECK(rig.hand_over("a"));
  CHECK(rig.count<Stop>(ids[0]) == 1);
  CHECK(rig.count<Stop>(ids[2]) == 0);
}

TEST_CASE("a coordinator whose node only stands by has no vote to lose", "[takeover]") {
  auto settings = with_successors(job(2, 4));
  settings.spares = 1;
  settings.own_id = GENERATE("e", "a");
  const bool stands_by = settings.own_id == "e", hands_over = GENERATE(true, false);
  CoordinatorRig rig(settings);
  const auto ids = form_with_ids(rig, {"a", "b", "c", "d", "e"});
  REQUIRE(rig.round_of(ids[4]) == -1);
  REQUIRE(rig.round_of(ids[1]) == 0);
  Stop stop;
  if (hands_over) {
    REQUIRE(rig.hand_over(settings.own_id));
    rig.lose(ids[stands_by ? 4 : 0]);
    rig.pass(200ms);
    stop = rig.last<Stop>(ids[1]);
  }
  // The network is cut: only half of the others come.
  CoordinatorRig next(settings);
  for (const std::size_t i : {1U, 2U}) {
    const auto start = rig.last<Start>(ids[i]);
    Membership membership(settings, settings.restarts, {{settings.own_id, 1}, {"b", 1}}, {});
    membership.take(start, {});
    if (hands_over) membership.take(stop, {});
    REQUIRE(membership.look_again({settings.own_id, 1}, {}, /*hung_up=*/true, /*ended_here=*/false, {}));
    Join join = next.wish(i == 1 ? "b" : "c");
    join.former = membership.former();
    if (membership.may_have_ended()) join.former.nobody_listens = true;
    next.join(join);
  }
  next.pass(15s);
  next.obey();
  CHECK(next.count<Lead>(1) == (stands_by ? 0 : 1));
}

}  // namespace
}  // namespace ddprun::launcher

// A node that its user takes out of a job: ddpctl drain, and a signal where there are spares.

#include <csignal>

#include <ddprun/common/files.h>
#include "tests/integration/named_nodes.h"

namespace ddprun::test {
namespace {

/// Works until there is a file "done". At SIGTERM rank 1 saves for a second; later ranks tell whether it has.
Command saving_job(const NamedNodes& nodes) {
  const std::string saved = nodes.file("saved").string();
  return script({}, "trap 'if [ $RANK = 1 ]; then sleep 1; touch " + saved +
                        "; fi; echo saved; exit 0' TERM; [ -e " + saved +
                        " ] && echo continues; echo ready $RANK; while [ ! -e " +
                        nodes.file("done").string() + " ]; do sleep 0.05; done");
}

TEST_CASE("ddpctl drain moves a node's ranks to a spare, and the other ranks go on", "[nodes]") {
  NamedNodes nodes(3, {"--spares=1", "--nproc-per-node=1", "--recover=rank", "--max-restarts=1"});
  nodes.begin_with_spare(
      job({}, {"recovers", "true", "ready", "--old", "meet", "wait-for-round", "--all", "meet"}));
  REQUIRE(nodes.node(0).wait_for_output(", round 0 at"));
  const Finished drained = nodes.ctl(0, {"drain", nodes.name(1)});
  CHECK(drained.status == ExitStatus::exited(0));
  CHECK_THAT(drained.out, ContainsSubstring("node 127.0.0.2 leaves job "));
  CHECK(nodes.wait() == std::vector(3, ExitStatus::exited(0)));
  CHECK(count_of("ready ", nodes.node(0).out()) == 1);
  CHECK(count_of("ready 1 ", nodes.node(2).out()) == 1);
  for (const std::size_t node : {0U, 2U})
    CHECK_THAT(nodes.node(node).err(), ContainsSubstring("node '127.0.0.2' is drained; node 127.0.0.3") &&
                                           ContainsSubstring(" takes its ranks"));
  CHECK_THAT(nodes.node(1).err(), ContainsSubstring("node '127.0.0.2' is drained"));
}

TEST_CASE("a node that leaves and whose ranks cannot move saves first, and all go on with a spare",
          "[nodes]") {
  const std::size_t leaving = GENERATE(0U, 1U);
  const bool by_signal = GENERATE(true, false);
  CAPTURE(leaving, by_signal);
  NamedNodes nodes(3, {"--spares=1", "--nproc-per-node=1", "--shutdown-timeout=60"});
  nodes.begin_with_spare(saving_job(nodes));
  if (by_signal)
    nodes.node(leaving).send_signal(SIGTERM);
  else
    CHECK(nodes.ctl(0, {"drain", nodes.name(leaving)}).status == ExitStatus::exited(0));
  REQUIRE(nodes.node(1 - leaving).wait_for_output("ready ", 2));
  REQUIRE(nodes.node(2).wait_for_output("ready "));
  for (const std::size_t node : {0U, 1U}) CHECK(count_of("saved", nodes.node(node).out()) == 1);
  for (const std::size_t node : {1 - leaving, std::size_t{2}})
    CHECK(count_of("continues", nodes.node(node).out()) == 1);
  write_file_atomic(nodes.file("done"), "");
  auto expected = std::vector(3, ExitStatus::exited(0));
  if (by_signal) expected[leaving] = ExitStatus::killed(SIGTERM);
  CHECK(nodes.wait() == expected);
}

TEST_CASE("the coordinator's node saves undisturbed when it is drained twice", "[nodes]") {
  NamedNodes nodes(3, {"--spares=1", "--nproc-per-node=1", "--shutdown-timeout=60"});
  nodes.begin_with_spare(
      script({}, "trap 'echo asked; sleep 2; echo saved; exit 0' TERM; echo ready $RANK; while [ ! -e " +
                     nodes.file("done").string() + " ]; do sleep 0.05; done"));
  const std::vector<std::string> drain = {"drain", nodes.name(0)};
  CHECK(nodes.ctl(0, drain).status == ExitStatus::exited(0));
  REQUIRE(nodes.node(0).wait_for_output("asked"));
  const Finished again = nodes.ctl(0, drain);
  CHECK(again.status == ExitStatus::exited(2));
  CHECK_THAT(again.err, ContainsSubstring("node '127.0.0.1' leaves already"));
  REQUIRE(nodes.node(1).wait_for_output("ready ", 2));
  write_file_atomic(nodes.file("done"), "");
  CHECK(nodes.wait() == std::vector(3, ExitStatus::exited(0)));
  CHECK(count_of("saved", nodes.node(0).out()) == 1);
}

TEST_CASE("the coordinator's node is not drained where SIGTERM ends no job", "[nodes]") {
  NamedNodes nodes(3, {"--spares=1", "--nproc-per-node=1", "--signals-to-handle=SIGINT"});
  nodes.begin_with_spare(saving_job(nodes));
  const Finished refused = nodes.ctl(0, {"drain", nodes.name(0)});
  CHECK(refused.status == ExitStatus::exited(2));
  CHECK_THAT(refused.err, ContainsSubstring("--signals-to-handle has no SIGTERM"));
  write_file_atomic(nodes.file("done"), "");
  CHECK(nodes.wait() == std::vector(3, ExitStatus::exited(0)));
}

TEST_CASE("a second signal ends a node whose workers do not end, and the others go on", "[nodes]") {
  NamedNodes nodes(3, {"--spares=1", "--nproc-per-node=1", "--shutdown-timeout=600"});
  nodes.begin_with_spare(script({},
                                "trap 'echo signalled; [ $RANK = 0 ] && exit 0' TERM; echo ready $RANK; "
                                "while [ ! -e " +
                                    nodes.file("done").string() + " ]; do sleep 0.05; done"));
  nodes.node(1).send_signal(SIGTERM);
  REQUIRE(nodes.node(1).wait_for_output("signalled"));
  nodes.node(1).send_signal(SIGTERM);
  CHECK(nodes.node(1).wait() == ExitStatus::killed(SIGTERM));
  REQUIRE(nodes.node(0).wait_for_output("ready 0", 2));
  REQUIRE(nodes.node(2).wait_for_output("ready 1"));
  write_file_atomic(nodes.file("done"), "");
  nodes.wait();
}

TEST_CASE(
    "workers that alone have their part of the state, or may not have it yet, are asked to end when a node "
    "leaves",
    "[nodes]") {
  const bool replaced = GENERATE(true, false);
  CAPTURE(replaced);
  NamedNodes nodes(3, {"--spares=1", "--nproc-per-node=1", "--recover=rank", "--max-restarts=1"});
  const std::string go = nodes.file("go").string(), done = nodes.file("done").string();
  std::vector<std::string> actions = {"recovers", replaced ? "true" : "with its node", "ready"};
  if (replaced) actions.insert(actions.end(), {"--old-rank", "0", "wait-for-file", go, "kill", "9", "--all"});
  actions.insert(actions.end(), {"wait-for-file", done});
  nodes.begin_with_spare(job({}, actions));
  if (replaced) {
    write_file_atomic(go, "");
    REQUIRE(nodes.node(0).wait_for_output("ready 0 ", 2));
    REQUIRE(wait_until([&] { return count_of("replacing only this rank", nodes.node(1).err()) == 1; }));
  }
  REQUIRE(nodes.ctl(0, {"drain", nodes.name(1)}).status == ExitStatus::exited(0));
  REQUIRE(nodes.node(2).wait_for_output("ready 1 "));
  REQUIRE(nodes.node(0).wait_for_output("ready 0 ", replaced ? 3 : 2));  // started anew, too
  write_file_atomic(done, "");
  CHECK(nodes.wait() == std::vector(3, ExitStatus::exited(0)));
}

TEST_CASE("ddpctl drain says why a node stays, and ends nothing", "[nodes]") {
  const bool spare = GENERATE(true, false);
  CAPTURE(spare);
  std::vector<std::string> flags = {"--nproc-per-node=1"};
  if (spare) flags.push_back("--spares=1");
  NamedNodes nodes(spare ? 3 : 2, flags);
  const Command command = saving_job(nodes);
  for (std::size_t i = 0; i < 2; ++i) nodes.add(command);  // a spare has a place, and has not come
  for (std::size_t i = 0; i < 2; ++i) REQUIRE(nodes.node(i).wait_for_output("ready "));
  const auto refused = [&](std::size_t asked, const std::vector<std::string>& words) {
    const Finished run = nodes.ctl(asked, words);
    CHECK(run.status == ExitStatus::exited(2));
    CHECK(count_of("\n", run.err) == 1);
    return run.err;
  };
  for (const std::size_t node : {0U, 1U})
    CHECK_THAT(refused(0, {"drain", nodes.name(node)}),
               ContainsSubstring("without node '" + nodes.name(node) +
                                 "' the job would have 1 of the 2 nodes that it needs: start another one "
                                 "first"));
  CHECK_THAT(refused(0, {"drain", "x"}), ContainsSubstring("no node of the job is called 'x'; it has "
                                                           "127.0.0.1") &&
                                             ContainsSubstring("127.0.0.2"));
  CHECK_THAT(refused(1, {"drain", nodes.name(1)}),
             ContainsSubstring("run ddpctl on the node that has the coordinator: 127.0.0.1"));
  CHECK_THAT(refused(0, {"drain"}), ContainsSubstring("expected the name of a NODE"));
  write_file_atomic(nodes.file("done"), "");
  CHECK(nodes.wait() == std::vector(2, ExitStatus::exited(0)));
  for (const std::size_t node : {0U, 1U}) CHECK(count_of("saved", nodes.node(node).out()) == 0);
}

}  // namespace
}  // namespace ddprun::test

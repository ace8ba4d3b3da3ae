#include "launcher/job/preflight.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/hosts.h"
#include "launcher/cli/options.h"
#include "launcher/rendezvous/admission.h"
#include "launcher/rendezvous/message.h"
#include "tests/launcher/rendezvous/coordinator_rig.h"

// --preflight and --exclude without processes: what the values mean, what the kernel's log and a clock say,
// and what the coordinator makes of a node that is unfit.

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::ContainsSubstring;
using test::CoordinatorRig;
using test::job;

using Words = std::vector<std::string>;

TEST_CASE("a preflight is a list of checks or a shell command", "[preflight]") {
  CHECK(parse_preflight("disk, shm,gpus")->checks == Words{"disk", "shm", "gpus"});
  for (const char* command :
       {"true", "nvidia-smi -L | grep -c GPU", "./disc", "test -e disk,shm", "sh check.sh"}) {
    INFO(command);
    REQUIRE(parse_preflight(command));
    CHECK(parse_preflight(command)->command == command);
    CHECK(parse_preflight(command)->checks.empty());
  }
  for (const char* mistake : {"disc", "gpu", "disk,shn", "disk,", ",", "clock,true"})
    CHECK_FALSE(parse_preflight(mistake));
}

TEST_CASE("hosts to leave out are spelled like those of a job", "[preflight]") {
  CHECK(parse_excluded("node3, gpu[09-10],me@10.0.0.7") == Words{"node3", "gpu09", "gpu10", "10.0.0.7"});
  CHECK_FALSE(parse_excluded("node3:4"));
  CHECK_FALSE(parse_excluded("a b"));
  CHECK(is_excluded("node3.cluster", {"node3"}));
  CHECK(is_excluded("node3", {"node3.cluster"}));
  CHECK_FALSE(is_excluded("node30", {"node3"}));
}

TEST_CASE("Xid errors of a broken GPU are found since its driver was loaded", "[preflight]") {
  const std::string old = "4,1,100,-;NVRM: Xid (PCI:0000:1a:00): 48, pid=7, name=x, DBE\n";
  const std::string log =
      "6,2,200,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65\n"
      "4,3,300,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
      "4,4,300,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
      "4,5,400,-;NVRM: Xid (PCI:0000:5e:00): 31, pid=9, name=python3, MMU Fault\n"
      "4,6,500,-;NVRM: Xid (PCI:0000:86:00): 95, pid=9, Uncontained ECC error\n";
  CHECK(xid_problems(old + log, {"0000:86:00"}) == Words{"GPU 0000:3b:00: the kernel's log has Xid 79"});
  CHECK(xid_problems(old, {}).size() == 1);
  CHECK(xid_problems("", {}).empty());
}

TEST_CASE("a clock is judged by the time that a message may have taken", "[preflight]") {
  CHECK(clock_problem(10'000, 10'000, 10'000).empty());
  CHECK(clock_problem(10'000, 9'000, 60'000).empty());  // the coordinator was stopped for a while
  CHECK(clock_problem(10'000, 12'000, 12'500).empty());
  CHECK_THAT(clock_problem(10'000, 13'000, 13'500),
             ContainsSubstring("its clock is 3 s behind the coordinator's"));
  CHECK_THAT(clock_problem(20'000, 9'000, 10'000),
             ContainsSubstring("its clock is 10 s ahead of the coordinator's"));
}

TEST_CASE("a node says in its first message why it is unfit, and what time it has", "[preflight][message]") {
  Join join;
  join.unfit = "--preflight failed: exit code 1";
  join.clock_ms = 1'795'000'000'123;
  CHECK(std::get<Join>(decode_node_message(encode(NodeMessage(join)))) == join);
}

Join unfit(Join join) {
  join.unfit = "no GPU";
  return join;
}

TEST_CASE("an unfit node is refused, and a spare takes its place", "[preflight][coordinator]") {
  auto settings = job(2, 2);
  settings.spares = 1;
  CoordinatorRig rig(settings);
  const auto a = rig.join("a"), b = rig.join(unfit(rig.wish("b")));
  CHECK(rig.last<Refused>(b).reason == "node b (10.0.0." + std::to_string(b) + ") stays out: no GPU");
  const auto c = rig.join("c");
  rig.obey();
  CHECK(rig.last<Start>(a).group_world_size == 2);
  CHECK(rig.last<Start>(c).group_rank == 1);
}

TEST_CASE("a job without enough fit nodes ends once all nodes have come, or soon",
          "[preflight][coordinator]") {
  CoordinatorRig rig(job(3, 3));
  const auto a = rig.join("a");
  rig.join(unfit(rig.wish("b")));
  CHECK(rig.count<End>(a) == 0);
  SECTION("all") {
    const auto c = rig.join("c");
    CHECK(rig.last<End>(a).exit_code == 125);
    CHECK(rig.last<End>(c).reason == "node b (10.0.0.2) stays out: no GPU");
  }
  SECTION("soon") {
    rig.pass(29s);
    CHECK(rig.count<End>(a) == 0);
    rig.pass(2s);
    CHECK(rig.last<End>(a).reason == "node b (10.0.0.2) stays out: no GPU");
  }
}

TEST_CASE("a job waits for nodes whose preflight may still run", "[preflight][coordinator]") {
  auto settings = job(3, 3);
  settings.preflight_timeout = 120s;
  CoordinatorRig rig(settings);
  const auto a = rig.join("a");
  rig.join(unfit(rig.wish("b")));
  rig.pass(149s);
  CHECK(rig.count<End>(a) == 0);
  rig.pass(2s);
  CHECK(rig.count<End>(a) == 1);
}

TEST_CASE("nodes that fail their preflight beside a running job do not end it", "[preflight][coordinator]") {
  CoordinatorRig rig(job(2, 4, /*max_restarts=*/3));
  const auto a = rig.join("a"), b = rig.join("b");
  rig.pass(31s);
  rig.obey();
  REQUIRE(rig.count<Start>(a) == 1);
  for (const char* name : {"c", "d", "e", "f"}) rig.join(unfit(rig.wish(name)));
  rig.lose(b);
  rig.obey();
  rig.pass(300s);
  CHECK(rig.count<End>(a) == 0);
  rig.join("b");
  rig.pass(1s);
  rig.obey();
  CHECK(rig.last<Start>(a).group_world_size == 2);
}

TEST_CASE("a spare without a node rank takes the place of an unfit node with one",
          "[preflight][coordinator]") {
  auto settings = job(2, 2);
  settings.spares = 1;
  CoordinatorRig rig(settings);
  const auto a = rig.join(rig.wish_of_rank("a", 0));
  rig.join(unfit(rig.wish_of_rank("b", 1)));
  const auto c = rig.join("c");
  rig.obey();
  CHECK(rig.last<Start>(a).group_rank == 0);
  CHECK(rig.last<Start>(c).group_rank == 1);
}

TEST_CASE("an elastic job waits for unfit nodes that come again and are fit", "[preflight][coordinator]") {
  CoordinatorRig rig(job(3, 4));
  const auto a = rig.join("a");
  Join b = rig.wish("b"), c = rig.wish("c");
  b.address = "10.0.0.8";
  c.address = "10.0.0.9";
  rig.join(unfit(b));
  rig.join(unfit(c));
  rig.join(b);
  rig.pass(60s);
  CHECK(rig.count<End>(a) == 0);
  rig.join(c);
  rig.pass(60s);
  rig.obey();
  CHECK(rig.last<Start>(a).group_world_size == 3);
}

}  // namespace
}  // namespace ddprun::launcher

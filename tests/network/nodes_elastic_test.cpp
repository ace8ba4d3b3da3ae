// Nodes that come and go while an elastic job runs.
#include <csignal>
#include <map>
#include <random>

#include "tests/network/nodes.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

namespace {

/// Workers that meet and then wait for a file.
class PatientJob {
 public:
  PatientJob(const Network& network, std::string counts)
      : nodes(network), flags_(elastic(std::move(counts))) {
    flags_.push_back("--last-call=0");
  }

  void start(int host) { nodes.start(host, flags_, {"meet", "wait-for-file", done().string()}); }

  /// Rank 0 is always on host 0, node 0, which never goes: its last meeting was one of so many ranks.
  void await_meeting_of(int ranks) {
    const std::string last = "met 0 of " + std::to_string(ranks) + ",";
    const bool met = wait_until([&] {
      const auto out = nodes[0].out();
      const auto at = out.rfind("met 0 ");
      return at != std::string::npos && out.compare(at, last.size(), last) == 0;
    });
    CAPTURE(ranks, nodes[0].out(), nodes[0].err());
    REQUIRE(met);
  }

  /// The node has a part in the job, or stands by.
  void await_taken(std::size_t node) {
    REQUIRE(wait_until([&] {
      return count_of("met ", nodes[node].out()) + count_of("standing by", nodes[node].err()) > 0;
    }));
  }

  void finish() { write_file_atomic(done(), ""); }

  Nodes nodes;

 private:
  std::filesystem::path done() const { return dir_.path() / "done"; }

  TempDir dir_;
  Words flags_;
};

}  // namespace

TEST_CASE("a node that comes late makes the job larger, at no cost in restarts", "[nodes]") {
  const Network network(2);
  PatientJob job(network, "1:2");
  job.start(0);
  job.await_meeting_of(1);
  job.start(1);
  job.await_meeting_of(2);
  job.finish();
  job.nodes.check_all_exit(0);
}

TEST_CASE("a node above the largest number stands by for one that goes", "[nodes]") {
  const Network network(3);
  PatientJob job(network, "1:2");
  job.start(0);
  job.await_meeting_of(1);
  job.start(1);
  job.await_meeting_of(2);
  job.start(2);
  REQUIRE(wait_until([&] { return count_of("standing by", job.nodes[2].err()) == 1; }));
  SECTION("and takes its place") {
    job.nodes[1].send_signal(SIGTERM);
    job.nodes.check_end(1, ExitStatus::killed(SIGTERM));
    REQUIRE(wait_until([&] { return count_of("met 1 of 2", job.nodes[2].out()) == 1; }));
    job.finish();
    job.nodes.check_end(0, ExitStatus::exited(0));
  }
  SECTION("or ends with the job, having run nothing") {
    job.finish();
    for (const std::size_t node : {0, 1}) job.nodes.check_end(node, ExitStatus::exited(0));
    CHECK(job.nodes[2].out().empty());
  }
  job.nodes.check_end(2, ExitStatus::exited(0));
}

TEST_CASE("a node that goes makes the job smaller, at no cost in restarts", "[nodes]") {
  const Network network(3);
  PatientJob job(network, "1:3");
  for (const int host : {0, 1, 2}) job.start(host);
  job.await_meeting_of(3);
  job.nodes[1].send_signal(SIGTERM);
  job.await_meeting_of(2);
  job.finish();
  job.nodes.check_end(1, ExitStatus::killed(SIGTERM));
  for (const std::size_t node : {0, 2}) job.nodes.check_end(node, ExitStatus::exited(0));
}

TEST_CASE("nodes come and go in random order until the job is done", "[nodes]") {
  need_vfork();  // workers are ended at any moment of their start
  constexpr int kHosts = 5, kMost = 3, kEvents = 16;
  const auto seed = GENERATE(range(1U, 7U));
  std::mt19937 random(seed);
  const Network network(kHosts);
  PatientJob job(network, "1:" + std::to_string(kMost));
  std::map<int, std::size_t> running;  // host -> node
  std::map<std::size_t, int> gone;     // node -> signal
  const auto start = [&](int host) {
    running[host] = job.nodes.size();
    job.start(host);
  };
  start(0);
  for (int event = 0; event < kEvents; ++event) {
    const int host = std::uniform_int_distribution(1, kHosts - 1)(random);
    if (running.count(host) == 0) {
      start(host);
    } else {
      const std::size_t node = running.at(host);
      gone[node] = random() % 2 == 0 ? SIGTERM : SIGKILL;
      job.nodes[node].send_signal(gone[node]);
      running.erase(host);
    }
    // Otherwise the next one comes before the job has settled.
    if (random() % 2 == 0) job.await_meeting_of(std::min(static_cast<int>(running.size()), kMost));
  }
  job.await_meeting_of(std::min(static_cast<int>(running.size()), kMost));
  for (const auto& [host, node] : running) job.await_taken(node);  // who comes too late finds nobody
  job.finish();
  CAPTURE(seed);
  for (std::size_t node = 0; node < job.nodes.size(); ++node)
    job.nodes.check_end(node, gone.count(node) > 0 ? ExitStatus::killed(gone[node]) : ExitStatus::exited(0));
}

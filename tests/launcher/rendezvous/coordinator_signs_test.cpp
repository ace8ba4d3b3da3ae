#include <algorithm>
#include <map>
#include <memory>
#include <random>

#include "launcher/rendezvous/message.h"
#include "launcher/workers/worker_pipes.h"
#include "tests/launcher/rendezvous/coordinator_rig.h"

// What the nodes tell each other about their workers' signs of life (--hang-timeout).

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using test::job;
using test::TwoNodes;

TEST_CASE("the coordinator's beats tell the last sign of life on any node", "[coordinator][hang]") {
  TwoNodes rig;
  rig.signs = {{rig.a, rig.now() - 20s}, {rig.b, rig.now()}};
  rig.pass(5s);
  CHECK(rig.last_beat == Beat{5000, 0});
  rig.signs[rig.a] = rig.now();
  rig.pass(2500ms);
  CHECK(rig.last_beat == Beat{2500, 0});
}

TEST_CASE("a node that has told nothing yet, or not for a while, may have shown a sign of life",
          "[coordinator][hang]") {
  TwoNodes rig;
  rig.signs = {{rig.a, rig.now()}};
  rig.pass(5s);
  CHECK(rig.last_beat == Beat{});
  rig.signs[rig.b] = rig.now();
  rig.pass(2500ms);
  CHECK(rig.last_beat == Beat{2500, 0});
  rig.silent.insert(rig.b);
  rig.pass(7500ms);
  CHECK(rig.last_beat == Beat{10000, 7500});
}

TEST_CASE("nothing more is expected from a node whose workers have succeeded", "[coordinator][hang]") {
  TwoNodes rig;
  rig.signs = {{rig.a, rig.now()}, {rig.b, rig.now()}};
  rig.pass(2500ms);
  rig.say(rig.b, Succeeded{0});
  rig.signs.erase(rig.b);
  rig.pass(5s);
  CHECK(rig.last_beat == Beat{7500, 0});
}

TEST_CASE("a node whose workers have ended keeps no others from being judged, until its next round",
          "[hang]") {
  const KnownSigns::Time begin = KnownSigns::Time() + 1h;
  SharedSigns signs;
  CHECK_FALSE(signs.take_own({begin, begin + 1s}, 5s));
  CHECK(signs.take_own({begin, KnownSigns::Time::max()}, 5s));
  for (const auto age : {2s, 60s}) CHECK(signs.next_beat(begin + age) == Beat{age / 1ms, 0});
  signs.begin_round();
  CHECK(signs.next_beat(begin + 70s) == Beat{});
}

/// Nodes with silent workers and slow connections; the first one's worker prints until it hangs.
class SilentNodes {
 public:
  explicit SilentNodes(unsigned seed) : random_(seed), nodes_(2 + random_() % 5) {
    CoordinatorSettings settings = job(static_cast<int>(nodes_.size()), static_cast<int>(nodes_.size()));
    settings.node_timeout = kNodeTimeout;
    coordinator_ = std::make_unique<Coordinator>(settings, now_);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Join join;
      join.node = "n" + std::to_string(i);
      join.min_nodes = join.max_nodes = settings.max_nodes;
      coordinator_->receive(i, join, "", now_);
      nodes_[i].started = now_ + milliseconds(random_() % 300);
      nodes_[i].ahead = milliseconds(random_() % 1'000'000);  // its clock
      nodes_[i].next_beat = now_ + milliseconds(random_() % 250);
    }
    coordinator_->receive(0, Leading{0, 1}, "", now_);
    coordinator_->take_messages();
  }

  /// Whether a node's workers count as hung within that time.
  bool hangs_within(milliseconds time, bool prints) {
    for (const auto until = now_ + time; now_ < until; now_ += 1ms) {
      if (prints && (now_ - begin_) % kPrints == 0ms) nodes_[0].printed = now_;
      deliver();
      for (std::size_t i = 0; i < nodes_.size(); ++i)
        if (look(i)) return true;
    }
    return false;
  }

  static constexpr milliseconds kNodeTimeout{1000}, kBeat = kNodeTimeout / kBeatsPerTimeout, kPrints{700},
                                                    kTimeout{800}, kSlowest{300};

 private:
  using Time = Coordinator::Time;
  struct Node {
    Time started, printed, next_beat, next_look;
    milliseconds ahead{0};
    SharedSigns signs;
    std::multimap<Time, Beat> to_it, from_it;
  };

  void deliver() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      for (; !node.from_it.empty() && node.from_it.begin()->first <= now_;
           node.from_it.erase(node.from_it.begin()))
        coordinator_->receive(i, node.from_it.begin()->second, "", now_);
    }
    if (now_ >= coordinator_->next_tick()) coordinator_->tick(now_);
    for (const auto& [id, message] : coordinator_->take_messages())
      put(nodes_[id].to_it, std::get<Beat>(message));
  }

  /// Each connection keeps the order of its beats.
  void put(std::multimap<Time, Beat>& way, const Beat& beat) {
    const Time arrives = now_ + milliseconds(random_() % (kSlowest.count() + 1));
    way.emplace(way.empty() ? arrives : std::max(arrives, way.rbegin()->first), beat);
  }

  bool look(std::size_t i) {
    Node& node = nodes_[i];
    const Time clock = now_ + node.ahead;
    bool news = false;
    for (; !node.to_it.empty() && node.to_it.begin()->first <= now_; node.to_it.erase(node.to_it.begin())) {
      node.signs.job = signs_in(node.to_it.begin()->second, clock);
      news = true;
    }
    if (now_ >= node.next_beat) {
      put(node.from_it, node.signs.next_beat(clock));
      node.next_beat = now_ + kBeat;
    }
    if (now_ < node.started || (now_ < node.next_look && !news)) return false;
    std::vector<SignsOfLife> workers(1);
    if (node.printed != Time()) workers[0].last_output = node.printed + node.ahead;
    const Time since = node.started + node.ahead;
    if (node.signs.take_own({latest_sign(workers, since), clock}, kTimeout))
      put(node.from_it, node.signs.next_beat(clock));
    const auto verdict = judge_hang(workers, since, kTimeout, clock, node.signs.job);
    const auto* later = std::get_if<LookAgain>(&verdict);
    if (later != nullptr) node.next_look = std::min(later->at - node.ahead, now_ + 100ms);
    return later == nullptr;
  }

  std::mt19937 random_;
  Time now_ = Time() + std::chrono::hours(1), begin_ = now_;
  std::vector<Node> nodes_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_CASE("rank 0's output keeps silent workers on all nodes alive, and a hang of all is found soon",
          "[coordinator][hang]") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    SilentNodes nodes(seed);
    REQUIRE_FALSE(nodes.hangs_within(20 * SilentNodes::kTimeout, /*prints=*/true));
    // The news of the last sign may be on their way as it has been silent for the timeout: two beats more.
    REQUIRE(nodes.hangs_within(SilentNodes::kTimeout + 2 * SilentNodes::kBeat + 4 * SilentNodes::kSlowest,
                               /*prints=*/false));
  }
}

}  // namespace
}  // namespace ddprun::launcher

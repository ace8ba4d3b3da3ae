#pragma once

// What the tests of jobs over several nodes share.
#include <deque>
#include <string>
#include <vector>

#include "tests/integration/job.h"
#include "tests/network/network.h"

namespace ddprun::test {

using Words = std::vector<std::string>;

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// The flags of one node of a job with a fixed number of them; that of rank 0 is host 0.
inline Words fixed(int nodes, int rank, const std::string& master_addr = Network::ipv4(0)) {
  return {"--nnodes=" + std::to_string(nodes), "--node-rank=" + std::to_string(rank),
          "--master-addr=" + master_addr, "--master-port=29500"};
}

/// The flags of any node of a job for MIN:MAX nodes, or N; the coordinator is on host 0.
inline Words elastic(const std::string& nodes, const std::string& endpoint = Network::ipv4(0) + ":29400") {
  return {"--nnodes=" + nodes, "--rdzv-endpoint=" + endpoint, "--rdzv-id=job"};
}

/// ddprun on several hosts: nodes 0, 1, ... in the order of their start.
class Nodes {
 public:
  explicit Nodes(const Network& network) : network_(network) {}

  /// Runs stub_worker with these actions.
  Child& start(int host, const Words& flags, const Words& actions) {
    return start(host, job(flags, actions));
  }
  Child& start(int host, const Command& command) { return nodes_.emplace_back(network_.on(host, command)); }

  Child& operator[](std::size_t node) { return nodes_.at(node); }
  std::size_t size() const { return nodes_.size(); }

  /// Waits for the node's end, which has to be this one, with nothing left of it.
  void check_end(std::size_t node, const ExitStatus& expected) {
    Child& child = nodes_.at(node);
    const auto status = child.wait(kEnd);
    CAPTURE(node, child.out(), child.err());
    CHECK(status == expected);
    check_nothing_left(child);
  }
  void check_all_end(const ExitStatus& expected) {
    for (std::size_t node = 0; node < nodes_.size(); ++node) check_end(node, expected);
  }
  void check_all_exit(int code) { check_all_end(ExitStatus::exited(code)); }

  std::string all_out() const {
    std::string text;
    for (const Child& child : nodes_) text += child.out();
    return text;
  }

 private:
  static constexpr std::chrono::seconds kEnd{60};

  const Network& network_;
  std::deque<Child> nodes_;
};

}  // namespace ddprun::test

#pragma once

#include <cstddef>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::test {

/// Which simulated hosts' packets reach which.
class CutNetwork {
 public:
  using Host = std::size_t;

  explicit CutNetwork(std::mt19937& random) : random_(random) {}

  bool carries(Host from, Host to) const { return from == to || !cut_.contains({from, to}); }

  /// Around one host, in halves, anywhere or between two hosts; perhaps in one direction only.
  ///
  /// returns  what is cut, for people
  std::string cut(std::size_t hosts) {
    std::vector<Host> order;
    for (Host host = 0; host < hosts; ++host)
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(below(host + 1)), host);
    const unsigned shape = below(4);
    if (shape == 3) order.resize(2);
    const std::size_t part = shape == 1 ? order.size() / 2 : shape == 2 ? 1 + below(order.size() - 1) : 1;
    const bool one_way = below(100) < 40;
    if (below(2) == 0) cut_.clear();
    std::string line = "the network is cut:";
    for (std::size_t i = 0; i < part; ++i)
      for (std::size_t j = part; j < order.size(); ++j) {
        cut_.insert({order[i], order[j]});
        if (!one_way) cut_.insert({order[j], order[i]});
        line += " h" + std::to_string(order[i]) + (one_way ? ">h" : "|h") + std::to_string(order[j]);
      }
    return line;
  }

  void cut_one_way(Host from, Host to) { cut_.insert({from, to}); }

  void mend() { cut_.clear(); }
  void mend_halfway() {
    std::erase_if(cut_, [this](const auto&) { return below(2) == 0; });
  }

 private:
  unsigned below(std::size_t n) { return static_cast<unsigned>(random_() % n); }

  std::mt19937& random_;
  std::set<std::pair<Host, Host>> cut_;  ///< from the one to the other
};

}  // namespace ddprun::test

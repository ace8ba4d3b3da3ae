#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::ddp {

/// Some ranks did not reach a barrier in time. Thrown on every rank that did, and on latecomers.
class MissingRanks : public std::runtime_error {
 public:
  MissingRanks(const std::string& message, std::vector<int> missing)
      : std::runtime_error(message), ranks(std::move(missing)) {}

  std::vector<int> ranks;  ///< of the whole job, ascending
};

/// "rank 1", "ranks 1 and 3", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 61 others"
std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace ddprun::ddp

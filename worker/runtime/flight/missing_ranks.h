#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::ddp {

/// Ranks that did not come to a barrier in time. Every rank that came throws the same, and so does one that
/// comes later.
class MissingRanks : public std::runtime_error {
 public:
  MissingRanks(const std::string& message, std::vector<int> missing)
      : std::runtime_error(message), ranks(std::move(missing)) {}

  std::vector<int> ranks;  ///< of the whole job, ascending
};

}  // namespace ddprun::ddp

#pragma once

#include <string>
#include <vector>

namespace ddprun::ddp {

/// "rank 1", "ranks 1 and 3", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 61 others"
std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace ddprun::ddp

#pragma once

#include <string>
#include <vector>

#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

// Nodes in messages to people. However many and however named, what is returned here is one line, fit for a
// terminal and short enough for a frame.

/// "n1 (10.0.0.1)".
///
/// address   where its connection comes from; empty: from the coordinator's own host
std::string named(const Join& join, const std::string& address);

/// "a, b, c"; of many the first few: "a, b, c and 997 more".
std::string few_of(const std::vector<std::string>& items);

/// "node rank 1", "node ranks 1, 3-7", "n2 (node rank 1), n4 (node rank 3)".
///
/// ranks   in ascending order
/// names   of the nodes by node rank, as far as they are known
std::string node_ranks(const std::vector<int>& ranks, const std::vector<std::string>& names);

}  // namespace ddprun::launcher

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/rendezvous/coordinator.h"
#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

// Which nodes may join, how they are ranked, and what messages call them. Texts for people are one line, safe
// for a terminal and short enough for a frame, however many nodes there are and whatever their names.

/// Why the node cannot join, regardless of the others; names both sides. Empty if it can.
///
/// address   the connection's source; empty: the coordinator's own host
std::string join_problem(const CoordinatorSettings& settings, const Join& join, const std::string& address);

bool has_other_run_id(const CoordinatorSettings& settings, const Join& join);

/// The time of day by this host's clock, in milliseconds since 1970.
std::int64_t time_of_day_ms();

/// Why a node's clock keeps it out (--preflight=clock): it differs from the coordinator's by more than two
/// seconds. Empty if it does not. All times as time_of_day_ms().
///
/// theirs       when the node sent its time, by the node's clock
/// from, until  the earliest and the latest time at which that can have been, by the coordinator's clock
std::string clock_problem(std::int64_t theirs, std::int64_t from, std::int64_t until);

/// Compares names in natural order: "node2" before "node10". Runs of digits compare as numbers of any length;
/// of numbers that differ only in leading zeros, the shorter comes first. A strict weak order.
bool natural_less(std::string_view a, std::string_view b);

/// "n1 (10.0.0.1)". address as in join_problem()
std::string describe_node(const Join& join, const std::string& address);

/// "a, b, c"; for many, the first few: "a, b, c and 997 more".
std::string first_few(const std::vector<std::string>& items);

/// "node rank 1", "node ranks 1, 3-7", "n2 (node rank 1), n4 (node rank 3)".
///
/// ranks   in ascending order
/// names   of the nodes by node rank, as far as known
std::string describe_node_ranks(const std::vector<int>& ranks, const std::vector<std::string>& names);

}  // namespace ddprun::launcher

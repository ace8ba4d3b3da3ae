#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ddprun/flight/flight_analysis.h>

namespace ddprun::ddp {

/// Why a collective failed, as one rank can tell: "rank 1 did not come within 30.0 s: it is at #16 (...)".
///
/// call        what failed
/// waited_ns   since it was called
/// rank        the one that tells
/// members     the ranks of the call's group
/// flights     of all ranks that are known
/// board_gone  the store could not be asked: the flights are what was known before
std::string why_it_failed(const CollectiveRecord& call, std::int64_t waited_ns, int rank,
                          const std::vector<int>& members, const std::vector<RankFlight>& flights,
                          bool board_gone);

}  // namespace ddprun::ddp

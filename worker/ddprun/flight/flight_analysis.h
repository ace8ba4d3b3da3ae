#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/flight/flight_recorder.h>

namespace ddprun::ddp {

/// What is known about one rank.
struct RankFlight {
  int rank = 0;
  bool answers = true;                        ///< false: the rest is what the rank published last
  std::string failure;                        ///< one line; empty unless the rank has announced a failure
  std::vector<CollectiveRecord> collectives;  ///< the newest of its ring, oldest first
};

/// The first collective of a group where its ranks diverge.
struct FlightFinding {
  struct Rank {
    enum class Kind { kFinished, kDiffers, kMissing, kFailed, kSilent };
    Kind kind = Kind::kMissing;
    int rank = 0;
    std::string text;  ///< kFinished: ""; kDiffers: its call; kFailed: its failure; else its position
  };
  std::string group;
  std::uint64_t sequence = 0;
  CollectiveRecord call;       ///< the most frequent one, or seen_by's
  std::vector<int> waiting;    ///< the ranks that made this call
  std::vector<Rank> culprits;  ///< the others, in the order of Kind, then of rank; never empty
};

/// Finds where the group's ranks diverge: the first sequence number that a rank has not reached while another
/// waits there, or where ranks made different calls (operation, element count, type or root). nullopt if they
/// agree.
///
/// members  the ranks of the group; one without a RankFlight is silent
/// seen_by  the rank whose call is expected; nullopt: the most frequent call
std::optional<FlightFinding> find_culprits(const std::string& group, const std::vector<int>& members,
                                           const std::vector<RankFlight>& flights,
                                           std::optional<int> seen_by = std::nullopt);

/// "rank 1 did not arrive: it is at #16 (all_reduce of 4096 float (bucket 1), completed); rank 2 ...", with
/// one clause for all ranks that did the same.
std::string describe_culprits(const FlightFinding& finding, const std::string& did_not_arrive,
                              const std::string& other_call);

/// A rank's place in a group: "at #16 (all_reduce of 4096 float, completed)" or "before its first
/// collective".
std::string describe_position(const std::string& group, const RankFlight& flight);

/// "30.0 s"
std::string seconds_text(std::int64_t nanoseconds);

/// "rank 1", "ranks 1 and 3", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 61 others"
std::string describe_ranks(const std::vector<int>& ranks);

/// "all_reduce #17 of 4096 float (bucket 2)"
std::string describe_with_number(const CollectiveRecord& call);

/// Why a collective failed, as one rank sees it: "rank 1 did not arrive within 30.0 s: it is at #16 (...)".
///
/// call        the failed call
/// waited_ns   the time since then
/// rank        the rank that asks
/// members     the ranks of the call's group
/// flights     of all known ranks
/// board_gone  the store is unreachable: the flights are the last known
std::string why_it_failed(const CollectiveRecord& call, std::int64_t waited_ns, int rank,
                          const std::vector<int>& members, const std::vector<RankFlight>& flights,
                          bool board_gone);

}  // namespace ddprun::ddp

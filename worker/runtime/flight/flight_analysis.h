#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/flight/flight_recorder.h>

namespace ddprun::ddp {

/// What is known of one rank when collectives are compared.
struct RankFlight {
  int rank = 0;
  bool answers = true;  ///< what follows is its latest; else it is what it last left behind
  std::string failure;  ///< how it failed, if it said so; one line
  std::vector<CollectiveRecord> collectives;  ///< the newest of its ring, oldest first
};

/// The first collective of a group at which ranks part.
struct FlightFinding {
  struct Rank {
    enum class Kind { kDiffers, kMissing, kFailed, kSilent };
    int rank = 0;
    Kind kind = Kind::kMissing;
    std::string text;  ///< kDiffers: its call; kFailed: its failure; else its position
  };
  std::string group;
  std::uint64_t sequence = 0;
  CollectiveRecord call;       ///< as most of those that came made it, or as the asking rank did
  std::vector<int> waiting;    ///< the ranks that made this call
  std::vector<Rank> culprits;  ///< the others, in the order of Kind, then of rank; never empty
};

/// Where the ranks part, for the group: at the first sequence number to which a rank has not come while
/// another waits there, or at which two ranks made different calls (another operation, element count, type,
/// root). nullopt if they agree.
///
/// members  the ranks of the group; one without a RankFlight is silent
/// seen_by  the rank whose call is the expected one where ranks differ; nullopt: the most frequent call
std::optional<FlightFinding> find_culprits(const std::string& group, const std::vector<int>& members,
                                           const std::vector<RankFlight>& flights,
                                           std::optional<int> seen_by = std::nullopt);

/// "rank 1 did not come: it is at #16 (all_reduce of 4096 float (bucket 1), completed); rank 2 ...", one
/// clause for each set of ranks of which the same is to be said.
std::string describe_culprits(const FlightFinding& finding, const std::string& did_not_come,
                              const std::string& other_call);

/// Where a rank stands in a group: "#16 (all_reduce of 4096 float, completed)", or "before its first
/// collective".
std::string describe_position(const std::string& group, const RankFlight& flight);

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

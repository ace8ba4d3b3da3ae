#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <vector>

namespace ddprun::train {

// From where a training continues when a rank was lost. Pure: every rank decides the same from what all have.

/// How advanced a state is: epoch, samples, step, progress; the higher one is newer. Empty: no state.
using Place = std::vector<std::int64_t>;

/// A rank's newest state, in its process or in the node's memory.
struct Offer {
  Place place;
  bool kept = false;  ///< in memory
};

/// The rank whose state all ranks take: the one with the newest, the first of equal ones. nullopt: all begin
/// from the newest checkpoint, if there is one.
///
/// offers       by rank
/// saved_later  whether a checkpoint is newer than a place
template <class SavedLater>
std::optional<int> choose_source(const std::vector<Offer>& offers, const SavedLater& saved_later) {
  const auto newest = std::ranges::max_element(offers, {}, &Offer::place);
  if (newest->place.empty() || (newest->kept && saved_later(newest->place))) return std::nullopt;
  return static_cast<int>(newest - offers.begin());
}

/// A rank's part of a state.
struct PartHead {
  std::int64_t number = -1;  ///< of the state
  int rank = 0, ranks = 0;
  Place place;
};

/// Which rank holds each rank's part of a state.
struct Parts {
  std::int64_t number = -1;
  Place place;
  std::map<int, int> holders;
};

/// The newest state of which every rank's part is held somewhere. Without holders: there is none.
///
/// held  by rank
inline Parts choose_parts(const std::vector<std::vector<PartHead>>& held) {
  const auto ranks = static_cast<int>(held.size());
  std::map<std::int64_t, Parts> by_number;
  for (int holder = 0; holder < ranks; ++holder)
    for (const PartHead& head : held[static_cast<std::size_t>(holder)]) {
      if (head.ranks != ranks) continue;
      Parts& parts = by_number[head.number];
      parts.number = head.number;
      parts.place = head.place;
      const auto found = parts.holders.try_emplace(head.rank, holder).first;
      if (head.rank == holder) found->second = holder;  // prefers its own
    }
  for (Parts& parts : by_number | std::views::values | std::views::reverse)
    if (static_cast<int>(parts.holders.size()) == ranks) return parts;
  return {};
}

}  // namespace ddprun::train

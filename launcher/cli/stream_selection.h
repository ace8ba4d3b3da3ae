#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// None, one or both of a worker's output streams.
struct Streams {
  bool out = false;
  bool err = false;
  bool operator==(const Streams&) const = default;
};

/// The workers and streams that --redirects or --tee selects.
struct StreamSelection {
  Streams others;                       ///< of local ranks that are not listed
  std::map<int, Streams> by_rank = {};  ///< by local rank
  Streams of(int local_rank) const;
  /// Whether it selects any stream at all.
  bool any() const;
  bool operator==(const StreamSelection&) const = default;
};

/// torchrun's syntax: "0" none, "1" stdout, "2" stderr, "3" both, for all workers; or "LOCAL_RANK:VALUE,...",
/// which selects nothing of workers that are not listed.
///
/// flag    as the user knows it, for the message
/// throws  UsageError, also for a rank that is given twice
StreamSelection parse_stream_selection(const std::string& flag, const std::string& text);

/// "0,2" of --local-ranks-filter: the local ranks whose output appears on the console. nullopt: all. throws
/// UsageError
std::optional<std::set<int>> parse_local_ranks(const std::string& flag, const std::string& text);

/// The texts of --duplicate-stdout-filters, separated by commas; ",," stands for a comma in a text.
std::vector<std::string> parse_line_filters(const std::string& text);

}  // namespace ddprun::launcher

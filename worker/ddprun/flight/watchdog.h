#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/flight/flight_analysis.h>

namespace ddprun::ddp {

/// Where a job's ranks leave messages for each other: a c10d::Store. Called from one thread at a time. All
/// throw std::exception if the store is gone.
struct Board {
  std::function<void(const std::string& key, const std::string& value)> set;
  /// nullopt for a key that is not set; does not wait
  std::function<std::vector<std::optional<std::string>>(const std::vector<std::string>& keys)> get;
  /// Adds to the number under the key (0 at first) and returns the sum.
  std::function<std::int64_t(const std::string& key, std::int64_t amount)> add;
};

/// Whether a collective has failed in this process, explained or not: it cannot reach another step.
bool collective_failed();

/// known  called when a collective has failed or the group ends, on any thread, with the time it may wait;
///        true: the reason is known, so no rank is asked for an explanation or waited for. null (the
///        default): never known
void set_failure_is_known(std::function<bool(std::chrono::milliseconds)> known);

/// Finds out why a collective failed: which ranks are missing or called something else.
///
/// A thread regularly publishes this rank's position on the board, without delaying collectives. When one
/// fails, the rank asks all others for their positions; every rank's thread answers, whatever its program is
/// doing, and writes its ring (write_flight_dump). A rank that does not answer in time has ended. Every wait
/// is bounded, even if the board is gone or hangs.
class Watchdog {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    /// Called once, on a thread of its own, when this rank waits in vain (waits_in_vain()): makes the
    /// collectives fail that it waits in. May be null.
    std::function<void()> on_waiting_in_vain = {};
    std::chrono::milliseconds look_every{250};      ///< for other ranks' questions
    std::chrono::milliseconds publish_every{1000};  ///< this rank's position
    std::chrono::milliseconds answer_within{3000};  ///< time for other ranks to answer
    std::chrono::milliseconds stuck_after{3000};    ///< a longer wait is compared with the other ranks'
  };

  Watchdog(FlightRecorder& recorder, Board board, const Options& options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Adds a group of this job: only the calls of such groups are published and compared.
  ///
  /// name  the same on all its ranks
  void add_group(FlightRecorder::Group group, std::string name);

  /// Whether this rank waits in a collective to which another one never comes, as that has made another call
  /// with the same number, or has closed the job's group. Known a few seconds after the ranks diverged.
  bool waits_in_vain() const;

  /// Ends the thread, as the destructor does; afterwards the board may go. For a job's orderly end.
  void stop();

  /// The message for a failed collective, in one line:
  ///   "all_reduce #17 of 4096 float (bucket 2): rank 1 did not arrive within 30.0 s: it is at ... [CAUSE]"
  /// Blocks for little more than answer_within. Later failures for the same reason get the same text.
  ///
  /// members  the ranks of its group, as ranks of the whole job
  /// cause    the backend's message
  std::string explain(FlightRecorder::Id id, const std::vector<int>& members, const std::string& cause);

  /// Tells the other ranks that this one ends with that failure. Blocks for at most `within`.
  void announce_failure(const std::string& message,
                        std::chrono::milliseconds within = std::chrono::seconds(1));

  /// Writes this rank's ring and asks the others to write theirs. Blocks like explain(). False if they could
  /// not be asked.
  bool dump_everywhere(const std::string& reason);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // also the thread's, which may outlive this if the board hangs
};

}  // namespace ddprun::ddp

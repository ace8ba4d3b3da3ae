#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/flight/flight_analysis.h>
#include <ddprun/flight/flight_recorder.h>

namespace ddprun::ddp {

/// Where the ranks of a job leave word for each other: a c10d::Store. Called from one thread at a time.
/// Each throws std::exception if the store is gone.
struct Board {
  std::function<void(const std::string& key, const std::string& value)> set;
  /// nullopt for a key that nobody has set; does not wait for it
  std::function<std::vector<std::optional<std::string>>(const std::vector<std::string>& keys)> get;
  /// Adds to the number under the key (0 at first) and returns the sum.
  std::function<std::int64_t(const std::string& key, std::int64_t amount)> add;
};

/// Tells why a collective failed: which ranks did not come to it, or called something else.
///
/// A thread of its own leaves this rank's position on the board every so often, off the path of the
/// collectives. When one fails, the rank asks all others for their positions; every rank answers from its
/// thread, wherever its program is, and writes its ring (write_flight_dump). A rank that does not answer in
/// time has ended. All of it is bounded in time, also when the board is gone or stands still.
class Watchdog {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    std::chrono::milliseconds look_every{250};      ///< for questions of other ranks
    std::chrono::milliseconds publish_every{1000};  ///< this rank's position
    std::chrono::milliseconds answer_within{3000};  ///< what others get for their answers
  };

  Watchdog(FlightRecorder& recorder, Board board, const Options& options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Ends the thread, as the destructor does: the board may go after it. For the orderly end of a job.
  void stop();

  /// The message for a collective that failed, in one line:
  ///   "all_reduce #17 of 4096 float (bucket 2): rank 1 did not come within 30.0 s: it is at #16 (...)
  ///   [CAUSE]"
  /// Blocks for at most answer_within and a little. The first call of a failure does the work; a second one
  /// for what failed for the same reason gets the same text.
  ///
  /// group    its name in the recorder
  /// members  the ranks of its group, as numbers of the whole job
  /// cause    what the backend said
  std::string explain(FlightRecorder::Id id, const std::vector<int>& members, const std::string& cause);

  /// Leaves word that this rank ends with that failure, so that the others can tell; bounded by `within`.
  void announce_failure(const std::string& message,
                        std::chrono::milliseconds within = std::chrono::seconds(1));

  /// Writes this rank's ring, and has the other ranks write theirs. Blocks as explain() does. False if they
  /// could not be asked.
  bool dump_everywhere(const std::string& reason);

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;  // with the thread, which a board that stands still may hold for ever
};

}  // namespace ddprun::ddp

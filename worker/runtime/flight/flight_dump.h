#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/flight/flight_recorder.h>

namespace ddprun::ddp {

/// What one rank leaves behind, as flight_RANK.json:
///   {"version": 1, "rank", "world_size", "reason", "time", "groups": {NAME: [RANK, ...]}, "collectives": [
///     {"sequence", "group", "op", "dtype", "elements", "tensors", "shape", "peer", "bucket", "state",
///      "created", "ended"}, ...]}
/// Times are seconds since the epoch; what does not apply (peer, bucket, ended) is left out.
struct FlightDump {
  int rank = 0;
  int world_size = 1;
  std::string reason;  ///< why it was written, one line
  std::int64_t time_ns = 0;
  std::vector<CollectiveRecord> collectives;            ///< oldest first
  std::map<std::string, std::vector<int>> groups = {};  ///< their members, as numbers of the whole job
};

std::string to_json(const FlightDump& dump);

/// throws  std::runtime_error, in one line, if the text is not such a document
FlightDump parse_flight_dump(const std::string& text);

/// Where this process writes its ring: $DDPRUN_FLIGHT_DIR; else the folder of this worker's log files, where
/// the launcher keeps them (that of TORCHELASTIC_ERROR_FILE, unless it is a temporary one of the launcher's);
/// else what set_flight_folder() said; else nowhere.
std::optional<std::filesystem::path> flight_folder();
void set_flight_folder(const std::filesystem::path& folder);

/// Called with the folder after each dump, to write what another recorder knows (NCCL's).
void set_extra_flight_dump(std::function<void(const std::filesystem::path& folder)> dump);

/// Writes the ring of this process into the folder, atomically. Returns the file's path; nullopt if there is
/// no folder, or, with a warning in the log, if it cannot be written: a dump must not hide what it is for.
std::optional<std::filesystem::path> write_flight_dump(const FlightRecorder& recorder, int rank,
                                                       int world_size, const std::string& reason) noexcept;

/// A rank's position, as it lies on the board: the number of the last question that it answers, of the last
/// for which it has written its ring, how it failed if it did, and the newest of its ring.
struct FlightPosition {
  std::int64_t answers = 0, dumped = 0;
  std::string failure;
  FlightDump flight;
};

std::string to_text(const FlightPosition& position);

/// nullopt for a text that is no position
std::optional<FlightPosition> parse_flight_position(const std::string& text);

}  // namespace ddprun::ddp

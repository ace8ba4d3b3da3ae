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

/// The content of flight_RANK.json:
///   {"version": 1, "rank", "world_size", "reason", "time", "groups": {NAME: [RANK, ...]}, "collectives": [
///     {"sequence", "group", "op", "dtype", "elements", "tensors", "shape", "peer", "bucket", "state",
///      "created", "ended"}, ...]}
/// Times are seconds since the epoch; peer, bucket and ended are omitted where they do not apply.
struct FlightDump {
  int rank = 0;
  int world_size = 1;
  std::string reason;  ///< why it was written, one line
  std::int64_t time_ns = 0;
  std::vector<CollectiveRecord> collectives;            ///< oldest first
  std::map<std::string, std::vector<int>> groups = {};  ///< their members, as ranks of the whole job
};

std::string to_json(const FlightDump& dump);

/// throws  std::runtime_error, in one line, if the text is not such a document
FlightDump parse_flight_dump(const std::string& text);

/// Where this process writes its ring: $DDPRUN_FLIGHT_DIR; else the folder of TORCHELASTIC_ERROR_FILE (this
/// worker's logs), unless the launcher deletes it; else the folder of set_flight_folder(); else nowhere.
std::optional<std::filesystem::path> flight_folder();
void set_flight_folder(const std::filesystem::path& folder);

/// Called with the folder after each dump, to write another recorder's dump (NCCL's) too.
void set_extra_flight_dump(std::function<void(const std::filesystem::path& folder)> dump);

/// Writes this process's ring into the folder, atomically. Returns the file's path; nullopt without a folder,
/// or, with a warning in the log, if writing fails.
std::optional<std::filesystem::path> write_flight_dump(const FlightRecorder& recorder, int rank,
                                                       int world_size, const std::string& reason) noexcept;

}  // namespace ddprun::ddp

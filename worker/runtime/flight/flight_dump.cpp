#include <ddprun/flight/flight_dump.h>

#include <cmath>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::ddp {
namespace {

constexpr int kVersion = 1;
constexpr double kSecond = 1e9;

struct Settings {
  std::mutex mutex;
  std::filesystem::path folder;
  std::function<void(const std::filesystem::path&)> extra;
};

Settings& settings() {
  static auto* const settings = new Settings;  // for the watchdog's thread too, which may outlive statics
  return *settings;
}

std::int64_t nanoseconds(double seconds) {
  if (!(std::abs(seconds) < 9e9)) throw std::runtime_error("a time is out of range");
  return std::llround(seconds * kSecond);
}

/// True below a folder that ddprun removes when the job ends: "ddprun-" and a hexadecimal id, directly in the
/// folder for temporary files.
bool is_launchers_temporary(const std::filesystem::path& path) {
  const auto relative = path.lexically_relative(temp_folder());
  const std::string first = relative.empty() ? "" : relative.begin()->string();
  const std::string prefix = "ddprun-";
  return first.rfind(prefix, 0) == 0 && first.size() >= prefix.size() + 8 &&
         first.find_first_not_of("0123456789abcdef-", prefix.size()) == std::string::npos;
}

}  // namespace

// Called by nlohmann's library, which finds them by name.

void from_json(const nlohmann::json& item, CollectiveRecord& record) {
  record.sequence = item.at("sequence").get<std::uint64_t>();
  record.group = one_line(item.at("group").get<std::string>());
  record.op = one_line(item.at("op").get<std::string>());
  record.dtype = one_line(item.at("dtype").get<std::string>());
  record.elements = item.at("elements").get<std::int64_t>();
  record.tensors = item.at("tensors").get<std::int64_t>();
  record.shape = item.at("shape").get<std::vector<std::int64_t>>();
  record.peer = item.value("peer", -1);
  record.bucket = item.value("bucket", -1);
  const auto state = collective_state(item.at("state").get<std::string>());
  if (!state) throw std::runtime_error("unknown state");
  record.state = *state;
  record.created_ns = nanoseconds(item.at("created").get<double>());
  record.ended_ns = nanoseconds(item.value("ended", 0.0));
}

void to_json(nlohmann::json& item, const CollectiveRecord& record) {
  item = {{"sequence", record.sequence},
          {"group", record.group},
          {"op", record.op},
          {"dtype", record.dtype},
          {"elements", record.elements},
          {"tensors", record.tensors},
          {"shape", record.shape},
          {"state", to_text(record.state)},
          {"created", static_cast<double>(record.created_ns) / kSecond}};
  if (record.peer >= 0) item["peer"] = record.peer;
  if (record.bucket >= 0) item["bucket"] = record.bucket;
  if (record.ended_ns != 0) item["ended"] = static_cast<double>(record.ended_ns) / kSecond;
}

std::string to_json(const FlightDump& dump) {
  const nlohmann::json document = {{"version", kVersion},
                                   {"rank", dump.rank},
                                   {"world_size", dump.world_size},
                                   {"reason", dump.reason},
                                   {"time", static_cast<double>(dump.time_ns) / kSecond},
                                   {"groups", dump.groups},
                                   {"collectives", dump.collectives}};
  return document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

FlightDump parse_flight_dump(const std::string& text) {
  try {
    const auto document = nlohmann::json::parse(text);
    if (document.at("version") != kVersion) throw std::runtime_error("unknown version");
    FlightDump dump;
    dump.rank = document.at("rank").get<int>();
    dump.world_size = document.at("world_size").get<int>();
    if (dump.rank < 0 || dump.rank >= dump.world_size) throw std::runtime_error("rank is out of range");
    dump.reason = one_line(document.at("reason").get<std::string>());
    dump.time_ns = nanoseconds(document.at("time").get<double>());
    dump.collectives = document.at("collectives").get<std::vector<CollectiveRecord>>();
    for (const auto& [name, members] : document.at("groups").items())
      dump.groups[one_line(name)] = members.get<std::vector<int>>();
    return dump;
  } catch (const std::exception& error) {
    throw std::runtime_error(one_line(std::string("not a flight record: ") + error.what()));
  }
}

std::optional<std::filesystem::path> flight_folder() {
  if (const auto wanted = process_env("DDPRUN_FLIGHT_DIR"); wanted && !wanted->empty()) return *wanted;
  if (const auto error_file = process_env("TORCHELASTIC_ERROR_FILE"); error_file && !error_file->empty())
    if (!is_launchers_temporary(*error_file)) return std::filesystem::path(*error_file).parent_path();
  const std::scoped_lock lock(settings().mutex);
  if (settings().folder.empty()) return std::nullopt;
  return settings().folder;
}

void set_flight_folder(const std::filesystem::path& folder) {
  const std::scoped_lock lock(settings().mutex);
  settings().folder = std::filesystem::absolute(folder);
}

void set_extra_flight_dump(std::function<void(const std::filesystem::path&)> dump) {
  const std::scoped_lock lock(settings().mutex);
  settings().extra = std::move(dump);
}

std::optional<std::filesystem::path> write_flight_dump(const FlightRecorder& recorder, int rank,
                                                       int world_size, const std::string& reason) noexcept {
  try {
    const auto folder = flight_folder();
    if (!folder) return std::nullopt;
    std::filesystem::create_directories(*folder);
    const auto path = *folder / ("flight_" + std::to_string(rank) + ".json");
    write_file_atomic(
        path, to_json({rank, world_size, reason, epoch_now_ns(), recorder.records(), recorder.groups()}));
    const auto extra = (std::scoped_lock(settings().mutex), settings().extra);
    if (extra) extra(*folder);
    return path;
  } catch (const std::exception& error) {
    log_warning(std::string("cannot write the flight record: ") + error.what());
    return std::nullopt;
  }
}

}  // namespace ddprun::ddp

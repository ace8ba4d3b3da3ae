#include <ddprun/common/error_file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun {

ExitStatus ExitStatus::from_wait_status(int wait_status) {
  if (WIFSIGNALED(wait_status)) return killed(WTERMSIG(wait_status), WCOREDUMP(wait_status));
  return exited(WEXITSTATUS(wait_status));
}

std::string describe(const ExitStatus& status) {
  if (status.kind == ExitStatus::Kind::kExited) return "exit code " + std::to_string(status.code);
  return "signal " + std::to_string(status.signal) + " (" + signal_name(status.signal) + ")" +
         (status.core_dumped ? ", core dumped" : "");
}

int to_exit_code(const ExitStatus& status) {
  return status.kind == ExitStatus::Kind::kExited ? status.code : exit_code_of_signal(status.signal);
}

std::string signal_name(int signal) {
  if (const char* name = ::sigabbrev_np(signal)) return std::string("SIG") + name;
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) return "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
  return "signal " + std::to_string(signal);
}

std::optional<int> signal_by_name(std::string_view name) {
  std::string wanted(name);
  for (char& c : wanted) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (wanted.substr(0, 3) != "SIG") wanted = "SIG" + wanted;
  for (int signal = 1; signal <= SIGRTMAX; ++signal)
    if (signal_name(signal) == wanted) return signal;
  return {};
}

namespace {

using nlohmann::json;

constexpr std::size_t kMaxBytes = 64 * 1024;
constexpr std::int64_t kYear10000 = 253'402'300'800;

std::int64_t parse_timestamp(const json& value) {
  double seconds = 0;  // exactly represents every whole second of the range
  if (value.is_number()) seconds = value.get<double>();
  if (value.is_string()) seconds = std::strtod(value.get<std::string>().c_str(), nullptr);
  return seconds >= 0 && seconds < kYear10000 ? static_cast<std::int64_t>(seconds) : 0;
}

std::optional<int> parse_error_code(const json& value) {
  const double code = value.is_number_integer() ? value.get<double>() : NAN;  // exact for every int
  return code >= INT_MIN && code <= INT_MAX ? std::optional(static_cast<int>(code)) : std::nullopt;
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return "";
  return found->is_string() ? found->get<std::string>()
                            : found->dump(-1, ' ', false, json::error_handler_t::replace);
}

ErrorFileContent interpret(const std::string& bytes) {
  const json root = parse_shallow_json(bytes);
  if (!root.is_object() || !root.contains("message")) return {std::nullopt, "is not JSON with a \"message\""};
  const json& message = root["message"];
  WorkerError error;
  if (!message.is_object()) {
    error.message = text_of(root, "message");
    if (root.contains("timestamp")) error.timestamp = parse_timestamp(root["timestamp"]);
    return {error, ""};
  }
  error.message = text_of(message, "message");
  if (const auto extra = message.find("extraInfo"); extra != message.end() && extra->is_object()) {
    error.call_stack = text_of(*extra, "py_callstack");
    if (extra->contains("timestamp")) error.timestamp = parse_timestamp((*extra)["timestamp"]);
  }
  if (const auto code = message.find("errorCode"); code != message.end())
    error.error_code = parse_error_code(*code);
  return {error, ""};
}

}  // namespace

void write_error_file(const std::filesystem::path& path, const WorkerError& error) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) return;
  json message = {
      {"message", error.message},
      {"extraInfo", {{"py_callstack", error.call_stack}, {"timestamp", std::to_string(error.timestamp)}}}};
  if (error.error_code) message["errorCode"] = *error.error_code;
  const json root = {{"message", message}};
  write_file_atomic(path, root.dump(-1, ' ', false, json::error_handler_t::replace));
}

ErrorFileContent read_error_file(const std::filesystem::path& path) noexcept try {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd && errno == ENOENT) return {};
  if (!fd && errno == ELOOP) return {std::nullopt, "is a symbolic link, which is not followed"};
  if (!fd) return {std::nullopt, std::string("cannot be opened: ") + std::strerror(errno)};
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {std::nullopt, "is not a regular file"};
  if (::geteuid() != 0 && info.st_uid != ::geteuid()) return {std::nullopt, "belongs to another user"};
  const std::string bytes = read_file(fd, path, kMaxBytes);
  return bytes.empty() ? ErrorFileContent() : interpret(bytes);  // empty: created in advance, never filled
} catch (const IoError& error) {                                 // from read_file()
  if (error.error_number == 0) return {std::nullopt, "is larger than 64 KiB"};
  return {std::nullopt, std::string("cannot be read: ") + std::strerror(error.error_number)};
} catch (const std::invalid_argument& error) {  // from parse_shallow_json()
  return {std::nullopt, error.what()};
} catch (const std::exception& error) {
  return {std::nullopt, std::string("cannot be understood: ") + error.what()};
}

}  // namespace ddprun

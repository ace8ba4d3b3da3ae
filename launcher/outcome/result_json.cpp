#include "launcher/outcome/result_json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include "launcher/events/events_json.h"
#include "launcher/plan/launch_plan.h"

namespace ddprun::launcher {
namespace {

using json = nlohmann::ordered_json;

constexpr int kFormatVersion = 1;
constexpr int kPipePatienceMs = 2000;  // how long to wait for a reader that does not read: the job is over

template <typename Value>
json value_or_null(const std::optional<Value>& value) {
  return value ? json(*value) : json(nullptr);
}

json signal_or_null(const std::optional<int>& signal) {
  return signal ? json(signal_name(*signal)) : json(nullptr);
}

json worker_json(const WorkerRecord& worker) {
  json object = {{"rank", worker.rank},
                 {"local_rank", worker.local_rank},
                 {"pid", worker.pid},
                 {"status", worker.status ? to_json(*worker.status) : json(nullptr)},
                 {"start_ns", worker.start_ns},
                 {"end_ns", value_or_null(worker.end_ns)},
                 {"asked_to_end", worker.asked_to_end}};
  if (worker.error.error && !worker.error.error->message.empty())
    object["error"] = worker.error.error->message;
  if (!worker.out_of_memory.empty()) object["out_of_memory"] = worker.out_of_memory;
  if (!worker.core.empty()) object["core"] = worker.core;
  if (!worker.last_lines.empty()) object["stderr"] = worker.last_lines;
  for (const auto& log : worker.logs) object["logs"].push_back(log.string());
  return object;
}

json attempt_json(const AttemptRecord& attempt) {
  json workers = json::array();
  for (const WorkerRecord& worker : attempt.workers) workers.push_back(worker_json(worker));
  json stragglers = json::array();
  for (const Straggler& straggler : attempt.stragglers) stragglers.push_back(to_json(straggler));
  return {{"number", attempt.number},
          {"port", attempt.port},
          {"start_ns", attempt.start_ns},
          {"end_ns", attempt.end_ns},
          {"reason", reason_of(attempt.outcome)},
          {"root_cause_rank", value_or_null(attempt.root_cause_rank)},
          {"stragglers", stragglers},
          {"workers", workers}};
}

void write_text(const std::filesystem::path& path, int fd, const std::string& text) {
  if (write_all(fd, text, kPipePatienceMs)) return;
  if (errno == EAGAIN) throw IoError(path, "nobody reads from it");
  throw IoError(path, "cannot write", errno);
}

}  // namespace

double total(const WorkerStatus::Seconds& seconds) {
  double sum = 0;
  for (const auto& part : {seconds.data, seconds.compute, seconds.communication, seconds.evaluation,
                           seconds.checkpoint, seconds.start})
    sum += part.value_or(0);
  return sum;
}

json to_ledger(double wall, const std::vector<AttemptRecord>& attempts) {
  WorkerStatus::Seconds sum{0, 0, 0, 0, 0, 0};
  double restarts = 0, repeated = 0;
  bool said = false;
  const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) / 1e9; };
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    const AttemptRecord& each = attempts[i];
    const auto& spent = each.said.seconds;
    said = said || spent != WorkerStatus::Seconds();
    const double start = spent.start.value_or(0);
    if (i == 0)
      *sum.start += seconds(each.start_ns) + start;
    else
      restarts += seconds(each.start_ns - attempts[i - 1].end_ns) + start;
    double compute = spent.compute.value_or(0);
    const auto steps = each.said.step.value_or(0) - each.first_step.value_or(0);
    const auto before = i == 0 ? std::nullopt : attempts[i - 1].said.step;
    if (before && each.first_step && steps > 0) {
      const auto again = std::clamp<std::int64_t>(*before - *each.first_step, 0, steps);
      const double share = static_cast<double>(again) / static_cast<double>(steps);
      repeated += share * compute;
      compute -= share * compute;
    }
    *sum.compute += compute;
    *sum.data += spent.data.value_or(0);
    *sum.communication += spent.communication.value_or(0);
    *sum.evaluation += spent.evaluation.value_or(0);
    *sum.checkpoint += spent.checkpoint.value_or(0);
  }
  if (!said) return nullptr;
  return {{"wall", wall},
          {"start", *sum.start},
          {"data", *sum.data},
          {"compute", *sum.compute},
          {"communication", *sum.communication},
          {"evaluation", *sum.evaluation},
          {"checkpoint", *sum.checkpoint},
          {"restarts", restarts},
          {"repeated", repeated},
          {"other", wall - total(sum) - restarts - repeated}};
}

std::string to_json(const JobRecord& record) {
  json attempts = json::array();
  for (const AttemptRecord& attempt : record.attempts) attempts.push_back(attempt_json(attempt));
  json root_cause_rank = nullptr;
  if (!record.attempts.empty()) root_cause_rank = value_or_null(record.attempts.back().root_cause_rank);
  const std::chrono::duration<double> duration = record.end - record.start;
  json object = {{"format", kFormatVersion},
                 {"ddprun", record.version},
                 {"run_id", record.run_id},
                 {"program", redacted(record.program)},
                 {"exit_code", record.exit_code},
                 {"ended_by", signal_or_null(record.ended_by)},
                 {"reason", reason_of(record.outcome)},
                 {"root_cause_rank", root_cause_rank},
                 {"max_restarts", record.max_restarts},
                 {"restarts", record.restarts},
                 {"start", utc_iso(record.start)},
                 {"end", utc_iso(record.end)},
                 {"duration_s", duration.count()},
                 {"ledger", to_ledger(duration.count(), record.attempts)},
                 {"attempts", attempts}};
  if (!record.message.empty()) object["message"] = record.message;
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

void check_result_json(const std::filesystem::path& path, const std::string& source) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const bool replaced = !is_device_or_pipe(path);
  std::error_code ignored;
  int error = 0;
  if (replaced && std::filesystem::is_directory(path, ignored)) error = EISDIR;
  if (::access((replaced ? folder : path).c_str(), replaced ? W_OK | X_OK : W_OK) != 0) error = errno;
  if (error != 0)
    throw UsageError(source + ": expected a file that can be written, got " + single_quoted(path.string()) +
                     ": " + std::strerror(error));
}

void write_result_json(const std::filesystem::path& path, const JobRecord& record) {
  const std::string text = to_json(record);
  if (is_device_or_pipe(path)) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!fd) throw IoError(path, "cannot open", errno);
    write_text(path, fd.get(), text);
    return;
  }
  replace_file_atomic(path, [&](const std::filesystem::path& temporary) {
    ::unlink(temporary.c_str());  // left by an earlier process with our pid
    const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd) throw IoError(path, "cannot create", errno);
    write_text(path, fd.get(), text);
  });
}

}  // namespace ddprun::launcher

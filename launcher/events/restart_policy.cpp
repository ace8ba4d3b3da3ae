#include "launcher/events/restart_policy.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/text.h>
#include "launcher/events/clock.h"
#include "launcher/events/launch_error.h"

namespace ddprun::launcher {
namespace {

constexpr int kMaxCode = 255;
constexpr std::chrono::milliseconds kMaxBackoff{60'000};

void add_item(std::string_view item, const std::string& flag, RestartCodes& codes) {
  if (const auto signal = signal_by_name(item)) {
    codes.insert(exit_code_of_signal(*signal));
    return;
  }
  const auto dash = item.find('-');
  const auto first = parse_integer(item.substr(0, dash), 1, kMaxCode);
  const auto last =
      dash == std::string_view::npos ? first : parse_integer(item.substr(dash + 1), 1, kMaxCode);
  if (!first || !last || *first > *last)
    throw UsageError(flag +
                     ": expected exit codes from 1 to 255, ranges such as 3-5 or names of "
                     "signals, separated by commas, got '" +
                     printable(item) + "'");
  for (int code = *first; code <= *last; ++code) codes.insert(code);
}

/// The delay before restart number n, from 1.
std::chrono::milliseconds backoff_before(int n, std::chrono::milliseconds first) {
  const auto longest = std::max(first, kMaxBackoff);
  auto delay = first;
  for (int i = 1; i < n && delay < longest && delay.count() > 0; ++i) delay *= 2;
  return std::min(delay, longest);
}

}  // namespace

int to_exit_code(const AttemptEnd& end) {
  if (const auto* failed = std::get_if<WorkerFailed>(&end)) return to_exit_code(failed->status);
  if (const auto* failed = std::get_if<StartFailed>(&end)) return failed->exit_code;
  if (const auto* received = std::get_if<SignalReceived>(&end)) return exit_code_of_signal(received->signal);
  return is_stuck(end) ? LaunchError::kTimeout : 0;
}

std::string reason_of(const AttemptEnd& end) {
  if (const auto* failed = std::get_if<StartFailed>(&end)) {
    if (failed->exit_code == LaunchError::kUsage) return "usage";
    if (failed->exit_code == LaunchError::kNotExecutable) return "not-executable";
    return failed->exit_code == LaunchError::kNotFound ? "not-found" : "own-failure";
  }
  if (const auto* ended = std::get_if<EndedByPeers>(&end); ended != nullptr && ended->drained)
    return "drained";
  // In the order of AttemptEnd.
  constexpr std::array kReasons{"succeeded", "failed", "", "timeout", "hang", "signal", "other-node"};
  return kReasons.at(end.index());
}

RestartCodes parse_restart_codes(std::string_view text, const std::string& flag) {
  RestartCodes codes;
  for (const std::string& item : split(text, ',')) add_item(item, flag, codes);
  return codes;
}

Decision decide(const RestartSettings& settings, const AttemptEnd& end, int restarts_used,
                std::chrono::steady_clock::duration lived) {
  const int exit_code = to_exit_code(end);
  const auto finish = [&](const std::string& why) {
    return Decision{false, std::chrono::milliseconds(0), restarts_used, exit_code, why};
  };
  if (std::holds_alternative<AllSucceeded>(end)) return finish("all workers succeeded");
  if (std::holds_alternative<TimedOut>(end)) return finish("--timeout ends the job");
  if (std::holds_alternative<StartFailed>(end)) return finish("the program cannot be started");
  if (const auto* received = std::get_if<SignalReceived>(&end))
    return finish(signal_name(received->signal) + " ends the job");
  if (settings.max_restarts == 0) return finish("--max-restarts is 0");
  if (!settings.codes.empty() && !settings.codes.contains(exit_code))
    return finish("exit code " + std::to_string(exit_code) + " is not among --restart-on-codes");
  if (settings.window && lived >= *settings.window) restarts_used = 0;
  if (restarts_used >= settings.max_restarts)
    return finish("--max-restarts=" + std::to_string(settings.max_restarts) + " is used up");
  const int n = restarts_used + 1;
  const auto delay = backoff_before(n, settings.backoff);
  return {true, delay, n, exit_code,
          "restart " + std::to_string(n) + " of " + std::to_string(settings.max_restarts) +
              (delay.count() > 0 ? " in " + in_seconds(delay) : "")};
}

Reached furthest(const Reached& a, const Reached& b) {
  Reached most = std::pair(a.epoch, a.step) < std::pair(b.epoch, b.step) ? b : a;
  most.starts_over = a.starts_over || b.starts_over;
  return most;
}

void StallWatch::add(int attempt, const Reached& reached, const std::string& end) {
  const Reached most = furthest(best_, reached);
  if (most.epoch != best_.epoch || most.step != best_.step) ends_.clear();
  best_ = most;
  ends_.push_back(
      "attempt " + std::to_string(attempt) +
      (reached.step < 0 ? ", without a step" : ", which reached step " + std::to_string(reached.step)) +
      ": " + end);
}

bool StallWatch::ends_job(const RestartSettings& settings) const {
  return settings.max_stalled > 0 && best_.step >= 0 && !best_.starts_over &&
         ends_.size() > static_cast<std::size_t>(settings.max_stalled);
}

std::string StallWatch::reason() const {
  const std::size_t restarts = ends_.size() - 1;
  return std::to_string(restarts) + (restarts == 1 ? " restart" : " restarts in a row") +
         " made no progress after step " + std::to_string(best_.step) + " (--max-stalled-restarts)";
}

std::vector<std::string> StallWatch::report() const {
  constexpr std::size_t kShown = 10;
  std::vector<std::string> lines = ends_;
  if (lines.size() > kShown) {
    lines[1] = std::to_string(lines.size() - kShown + 1) + " more attempts";
    lines.erase(lines.begin() + 2, lines.end() - static_cast<std::ptrdiff_t>(kShown - 2));
  }
  return lines;
}

}  // namespace ddprun::launcher

#include "launcher/cli/option_values.h"

#include <charconv>
#include <cmath>
#include <csignal>

#include <ddprun/common/exit_status.h>
#include <ddprun/common/settings/parse.h>

namespace ddprun::launcher {

std::optional<WorkersWanted> parse_nproc(const std::string& text) {
  using Kind = WorkersWanted::Kind;
  if (text == "cpu") return WorkersWanted{Kind::kCpu, 0};
  if (text == "gpu") return WorkersWanted{Kind::kGpu, 0};
  if (text == "auto") return WorkersWanted{Kind::kAuto, 0};
  if (const auto count = parse_integer(text, 1, kMaxWorkersPerNode))
    return WorkersWanted{Kind::kCount, *count};
  return {};
}

std::optional<int> parse_port(const std::string& text) { return parse_integer(text, 1, 65535); }

std::optional<int> parse_count(const std::string& text) { return parse_integer(text, 0, 1'000'000); }

std::optional<std::chrono::milliseconds> parse_seconds(const std::string& text) {
  const auto seconds = parse_number(text);
  if (!seconds || *seconds < 0 || *seconds > 1e6) return {};
  return std::chrono::milliseconds(std::llround(*seconds * 1000));
}

std::optional<std::chrono::milliseconds> parse_positive_seconds(const std::string& text) {
  const auto time = parse_seconds(text);
  return time && *time >= std::chrono::seconds(1) ? time : std::nullopt;
}

std::optional<std::size_t> parse_bytes(const std::string& text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(static_cast<const char*>(end), text.data() + text.size());
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (error != std::errc() || shift < 0 || value == 0 || value > (std::size_t{1} << 62 >> shift)) return {};
  return value << shift;
}

std::optional<std::vector<int>> parse_signals(const std::string& text) {
  std::vector<int> signals;
  if (text == "none") return signals;
  for (const std::string& word : split(text, ',')) {
    const auto number = parse_integer(word, 1, SIGRTMAX);
    const auto signal = number ? number : signal_by_name(word);
    if (!signal || *signal == SIGKILL || *signal == SIGSTOP || *signal == SIGCHLD) return {};
    signals.push_back(*signal);
  }
  return signals;
}

std::optional<NumaBinding> parse_numa_binding(const std::string& text) {
  for (std::size_t i = 0; i < kNumaBindings.size(); ++i)
    if (text == kNumaBindings[i]) return static_cast<NumaBinding>(i);
  return {};
}

bool is_local_endpoint(const std::string& endpoint) {
  std::string host = endpoint;
  const auto colon = endpoint.rfind(':');
  if (colon != std::string::npos && endpoint != "::1" && endpoint.back() != ']') {
    host = endpoint.substr(0, colon);
    if (!parse_integer(endpoint.substr(colon + 1), 0, 65535)) return false;
  }
  return is_this_host(host);
}

}  // namespace ddprun::launcher

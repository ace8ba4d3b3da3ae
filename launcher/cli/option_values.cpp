#include "launcher/cli/option_values.h"

#include <charconv>
#include <cmath>
#include <csignal>

#include <ddprun/common/exit_status.h>

namespace ddprun::launcher {

std::optional<int> whole_number(const std::string& text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) return {};
  return value;
}

std::optional<WorkersWanted> parse_nproc(const std::string& text) {
  using Kind = WorkersWanted::Kind;
  if (text == "cpu") return WorkersWanted{Kind::kCpu, 0};
  if (text == "gpu") return WorkersWanted{Kind::kGpu, 0};
  if (text == "auto") return WorkersWanted{Kind::kAuto, 0};
  if (const auto count = whole_number(text, 1, kMaxWorkersPerNode))
    return WorkersWanted{Kind::kCount, *count};
  return {};
}

std::optional<int> parse_port(const std::string& text) { return whole_number(text, 1, 65535); }

std::optional<int> parse_count(const std::string& text) { return whole_number(text, 0, 1'000'000); }

std::optional<std::chrono::milliseconds> parse_seconds(const std::string& text) {
  constexpr double kMaxSeconds = 1e6;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds >= 0 && seconds <= kMaxSeconds))
    return {};
  return std::chrono::milliseconds(std::llround(seconds * 1000));
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
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const auto number = whole_number(word, 1, SIGRTMAX);
    const auto signal = number ? number : signal_by_name(word);
    if (!signal || *signal == SIGKILL || *signal == SIGSTOP || *signal == SIGCHLD) return {};
    signals.push_back(*signal);
    begin = end + 1;
  }
  return signals;
}

std::optional<std::string> numa_binding_name(const std::string& text) {
  for (const char* mode : {"node", "socket", "exclusive", "core-complex"})
    if (text == mode) return text;
  return {};
}

std::optional<bool> parse_display_map(const std::string& text) {
  return text == "map" ? std::optional<bool>(true) : std::nullopt;
}

bool is_local_endpoint(const std::string& endpoint) {
  std::string host = endpoint;
  const auto colon = endpoint.rfind(':');
  if (colon != std::string::npos && endpoint != "::1" && endpoint.back() != ']') {
    host = endpoint.substr(0, colon);
    if (!whole_number(endpoint.substr(colon + 1), 0, 65535)) return false;
  }
  return is_this_host(host);
}

}  // namespace ddprun::launcher

#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/options.h"

namespace ddprun::launcher {

// Parsers of flags' values; nullopt if the text is not one.

std::optional<WorkersWanted> parse_nproc(const std::string& text);
std::optional<int> parse_port(const std::string& text);   ///< 1 to 65535
std::optional<int> parse_count(const std::string& text);  ///< 0 to 1000000
/// 0 to 1000000, fractions too
std::optional<std::chrono::milliseconds> parse_seconds(const std::string& text);
std::optional<std::chrono::milliseconds> parse_positive_seconds(const std::string& text);  ///< at least 1
/// "500", "500K", "100M", "2G"; at least 1
std::optional<std::size_t> parse_bytes(const std::string& text);
/// "SIGTERM,INT,10"; "none" is an empty list. SIGKILL, SIGSTOP and SIGCHLD are refused: ddprun cannot handle
/// them.
std::optional<std::vector<int>> parse_signals(const std::string& text);
std::optional<NumaBinding> parse_numa_binding(const std::string& text);

/// Whether "HOST", "HOST:PORT" or "[V6]:PORT" is this host.
bool is_local_endpoint(const std::string& endpoint);

}  // namespace ddprun::launcher

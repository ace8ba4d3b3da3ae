#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace ddprun::launcher {

/// What can be asked of a running job. All that waits is a coroutine: an answer never delays the job.
struct JobQuestions {
  std::function<nlohmann::ordered_json()> view;  ///< docs/ddpctl.md
  /// A rank's output after its first `seen` bytes, as far as it is kept.
  std::function<nlohmann::ordered_json(int rank, std::uint64_t seen)> output;
  /// The stacks of one rank, or of all.
  std::function<boost::asio::awaitable<nlohmann::ordered_json>(std::optional<int> rank)> stacks;
  std::function<nlohmann::ordered_json()> stop;
};

/// Answers one line of JSON: {"ask": "status" | "output" | "stacks" | "stop", "rank": N, "seen": N}. A
/// request that cannot be answered gets {"error": "..."}.
boost::asio::awaitable<std::string> answer_line(const JobQuestions& questions, std::string line);

/// Where this user's jobs have their sockets, JOB.sock: $DDPRUN_CONTROL_DIR, else /tmp/ddprun-UID. Not in
/// $XDG_RUNTIME_DIR, which is emptied when the user logs out.
std::filesystem::path control_folder();

/// Whether this is a folder of this user that nobody else can enter.
bool is_private_folder(const std::filesystem::path& folder);

}  // namespace ddprun::launcher

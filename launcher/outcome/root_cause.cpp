#include "launcher/outcome/root_cause.h"

#include <sys/stat.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "launcher/events/clock.h"
#include "launcher/events/threads.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

std::optional<ErrorSeen> error_seen(const std::filesystem::path& path) {
  struct stat info {};
  if (path.empty() || ::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0)
    return {};
  ErrorSeen seen;
  seen.content = read_error_file(path);
  if (seen.content.error) seen.reported = seen.content.error->timestamp;
  seen.written_ns = info.st_mtim.tv_sec * std::int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
  return seen;
}

bool is_older(const ErrorSeen& a, const ErrorSeen& b) {
  if (a.reported > 0 && b.reported > 0 && a.reported != b.reported) return a.reported < b.reported;
  return a.written_ns < b.written_ns;
}

ErrorFileContent read_if_any(const std::filesystem::path& path) {
  return path.empty() ? ErrorFileContent() : read_error_file(path);
}

/// What is found in each file; `late` for all if the disk takes longer.
template <typename Found>
asio::awaitable<std::vector<Found>> look(std::vector<std::filesystem::path> files, bool aside,
                                         std::chrono::milliseconds patience,
                                         Found (*find)(const std::filesystem::path&), Found late) {
  const auto found = std::make_shared<std::vector<Found>>(files.size());
  const std::function<void()> work = [found, files, find] {
    for (std::size_t i = 0; i < files.size(); ++i) (*found)[i] = find(files[i]);
  };
  if (!aside) {
    work();
    co_return *found;
  }
  const AsideEnd end = co_await run_aside(work, LoopClock::now() + patience);
  co_return end == AsideEnd::kDone ? *found : std::vector<Found>(files.size(), late);
}

}  // namespace

asio::awaitable<std::vector<ErrorFileContent>> read_error_files(
    std::vector<std::filesystem::path> error_files, bool aside, std::chrono::milliseconds patience) {
  const ErrorFileContent late{std::nullopt, "cannot be read: the disk does not answer"};
  co_return co_await look(std::move(error_files), aside, patience, read_if_any, late);
}

asio::awaitable<std::vector<std::optional<ErrorSeen>>> errors_seen(
    std::vector<std::filesystem::path> error_files, bool aside) {
  constexpr std::chrono::milliseconds kPatience{500};
  const std::optional<ErrorSeen> late;
  co_return co_await look(std::move(error_files), aside, kPatience, error_seen, late);
}

std::size_t root_cause(std::size_t first, const std::vector<std::optional<ErrorSeen>>& seen) {
  std::size_t root = first;
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (seen[i] && (!seen[root] || is_older(*seen[i], *seen[root]))) root = i;
  return root;
}

bool may_exit_soon(const ErrorSeen& error, std::int64_t now) {
  constexpr std::int64_t kSecondsToExit = 10;
  return error.reported == 0 || now - error.reported <= kSecondsToExit;
}

}  // namespace ddprun::launcher

#include "launcher/failure/root_cause.h"

#include <sys/stat.h>

#include <chrono>
#include <functional>
#include <memory>

#include <ddprun/common/error_file.h>
#include "launcher/events/aside.h"
#include "launcher/events/clock.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

std::optional<ErrorSeen> error_seen(const std::filesystem::path& path) {
  struct stat info {};
  if (path.empty() || ::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0)
    return {};
  const auto error = read_error_file(path).error;
  return ErrorSeen{error ? error->timestamp : 0,
                   info.st_mtim.tv_sec * std::int64_t{1'000'000'000} + info.st_mtim.tv_nsec};
}

bool is_older(const ErrorSeen& a, const ErrorSeen& b) {
  if (a.reported > 0 && b.reported > 0 && a.reported != b.reported) return a.reported < b.reported;
  return a.written_ns < b.written_ns;
}

}  // namespace

asio::awaitable<std::vector<std::optional<ErrorSeen>>> errors_seen(
    std::vector<std::filesystem::path> error_files) {
  constexpr std::chrono::milliseconds kPatience{500};
  const auto seen = std::make_shared<std::vector<std::optional<ErrorSeen>>>(error_files.size());
  const std::function<void()> look = [seen, error_files] {
    for (std::size_t i = 0; i < error_files.size(); ++i) (*seen)[i] = error_seen(error_files[i]);
  };
  if (co_await run_aside(look, LoopClock::now() + kPatience) == AsideEnd::kDone) co_return *seen;
  co_return std::vector<std::optional<ErrorSeen>>(error_files.size());
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

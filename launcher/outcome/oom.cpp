#include "launcher/outcome/oom.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>

#include <ddprun/common/text.h>
#include "launcher/host/cpus.h"

namespace ddprun::launcher {
namespace {

constexpr int kMaxLogRecords = 10'000;  // per look, however fast the kernel writes

/// A line of mountinfo: "ID PARENT MAJOR:MINOR ROOT MOUNT_POINT OPTIONS [TAGS] - TYPE SOURCE SUPER_OPTIONS".
struct Mount {
  std::string root;
  std::string point;
  std::string type;
  std::string options;
};

std::optional<Mount> parse_mount(const std::string& line) {
  const auto words = split(line, ' ');
  for (std::size_t dash = 6; dash + 3 < words.size(); ++dash)
    if (words[dash] == "-") return Mount{words[3], words[4], words[dash + 1], words[dash + 3]};
  return std::nullopt;
}

/// The path below the mount's root; nullopt if it is elsewhere.
std::optional<std::string> relative_to(const std::string& root, const std::string& path) {
  if (path.substr(0, 1) != "/") return std::nullopt;               // not written by the kernel
  if (path.find("/..") != std::string::npos) return std::nullopt;  // outside our cgroup namespace
  if (root == "/") return path;
  if (path.substr(0, root.size()) != root) return std::nullopt;
  const std::string rest = path.substr(root.size());
  return rest.empty() || rest[0] == '/' ? std::optional(rest) : std::nullopt;
}

std::uint64_t number_after(std::string_view text, std::string_view key) {
  const auto found = text.find(key);
  std::uint64_t value = 0;
  if (found == std::string_view::npos) return value;
  const std::string_view digits = text.substr(found + key.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

std::string gibibytes(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1ULL << 30));
  return text;
}

UniqueFd open_kernel_log() {
  UniqueFd fd(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (fd) ::lseek(fd.get(), 0, SEEK_END);
  return fd;
}

}  // namespace

std::optional<std::filesystem::path> oom_counter_file(std::string_view cgroup, std::string_view mountinfo) {
  const std::string lines(cgroup);
  // A memory controller in version 1 means that version 2 has none.
  const std::string version1 = own_cgroup(lines, "memory");
  const bool v2 = version1.empty();
  const std::string own = v2 ? own_cgroup(lines, "") : version1;
  if (own.empty()) return std::nullopt;
  for (const std::string& line : split(mountinfo, '\n')) {
    const auto mount = parse_mount(line);
    if (!mount || mount->type != (v2 ? "cgroup2" : "cgroup")) continue;
    if (!v2 && !has_word(mount->options, "memory")) continue;
    if (const auto below = relative_to(mount->root, own))
      return std::filesystem::path(mount->point + *below) / (v2 ? "memory.events" : "memory.oom_control");
  }
  return std::nullopt;
}

std::optional<std::uint64_t> parse_oom_kills(std::string_view text) {
  constexpr std::string_view kKey = "oom_kill ";
  for (const std::string& line : split(text, '\n')) {
    if (line.substr(0, kKey.size()) != kKey) continue;
    if (const auto kills = parse_integer<std::uint64_t>(line.substr(kKey.size()), 0, UINT64_MAX))
      return kills;
  }
  return std::nullopt;
}

std::optional<OomKill> parse_oom_kill(std::string_view line) {
  constexpr std::string_view kKilled = "Killed process ";
  const auto found = line.find(kKilled);
  if (found == std::string_view::npos || line.find("ut of memory: ") == std::string_view::npos) return {};
  const std::string_view rest = line.substr(found + kKilled.size());
  OomKill kill;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), kill.pid);
  if (error != std::errc() || kill.pid <= 0) return std::nullopt;
  kill.in_cgroup = line.substr(0, found).find("emory cgroup out of memory") != std::string_view::npos;
  kill.anonymous_bytes = number_after(rest, "anon-rss:") * 1024;
  return kill;
}

std::string describe(const OomFinding& finding, bool killed) {
  if (finding.named) {
    const OomKill& kill = *finding.named;
    const std::string held =
        kill.anonymous_bytes > 0 ? ", when it held " + gibibytes(kill.anonymous_bytes) : "";
    return std::string("out of memory: the kernel killed it because its ") +
           (kill.in_cgroup ? "cgroup" : "machine") + " had none left" + held;
  }
  if (finding.kills == 0) return "";
  const std::string count = finding.kills == 1 ? "a process" : std::to_string(finding.kills) + " processes";
  return std::string(killed ? "out of memory" : "perhaps out of memory") + ": the kernel killed " + count +
         " of this cgroup while the job ran";
}

OomWatch::OomWatch()
    : counter_(oom_counter_file(read_or_empty("/proc/self/cgroup"), read_or_empty("/proc/self/mountinfo"))),
      kernel_log_(open_kernel_log()) {
  restart();
}

void OomWatch::restart() {
  kills_before_ = count_kills();
  if (kernel_log_) ::lseek(kernel_log_.get(), 0, SEEK_END);
}

OomFinding OomWatch::look(pid_t pid) {
  OomFinding finding;
  const std::uint64_t kills = count_kills();
  finding.kills = kills > kills_before_ ? kills - kills_before_ : 0;
  char record[8192];  // one record per read, which fails if the buffer is smaller
  for (int i = 0; kernel_log_ && i < kMaxLogRecords; ++i) {
    const ssize_t n = ::read(kernel_log_.get(), record, sizeof record);
    if (n < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: overwritten before we read it
    if (n <= 0) break;
    const auto kill = parse_oom_kill({record, static_cast<std::size_t>(n)});
    if (kill && kill->pid == pid) finding.named = kill;
  }
  return finding;
}

std::uint64_t OomWatch::count_kills() const {
  return counter_ ? parse_oom_kills(read_or_empty(*counter_)).value_or(0) : 0;
}

}  // namespace ddprun::launcher

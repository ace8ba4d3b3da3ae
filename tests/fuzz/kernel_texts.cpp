// Texts of the kernel: "core_pattern <section> host <section> folder <section> /proc/PID/cgroup <section>
// mountinfo <section> memory.events, or a line of the kernel's log".
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/failure/core_file.h"
#include "launcher/failure/oom.h"
#include "tests/fuzz/fuzz.h"

namespace ddprun::fuzz {
using namespace launcher;
namespace {

constexpr std::size_t kMaxPattern = 127;  // the kernel's
constexpr std::size_t kMaxName = 64;      // of a host; and enough of a folder

/// The name that the kernel makes of a pattern. returns "" for a process of unknown values
std::string kernels_name(std::string_view pattern, bool uses_pid, const CoreDump& dump) {
  std::string name;
  bool has_pid = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      name += pattern[i];
      continue;
    }
    if (++i == pattern.size()) break;
    const char what = pattern[i];
    has_pid = has_pid || what == 'p';
    if (what == '%') name += '%';
    if (what == 'p') name += std::to_string(dump.pid);
    if (what == 's') name += std::to_string(dump.signal);
    if (what == 'h') name += dump.host;
    if (what == 'u') name += std::to_string(::getuid());
    if (what == 'g') name += std::to_string(::getgid());
    if (what == 'e' || what == 'f' || what == 'E') name += "a*?[\\]b !";
    if (std::string_view("PiIdtcCF").find(what) != std::string_view::npos) name += "12345";
  }
  if (uses_pid && !has_pid) name += "." + std::to_string(dump.pid);
  return name.empty() || name[0] == '/' ? name : dump.cwd.string() + "/" + name;
}

void check_core_pattern(std::string_view pattern, const std::string& host, const std::string& cwd) {
  CoreDump dump;
  dump.pid = 4711;
  dump.signal = 11;
  dump.host = host;
  std::replace(dump.host.begin(), dump.host.end(), '/', '!');  // as the kernel does
  dump.cwd = "/" + cwd;
  for (const bool uses_pid : {false, true}) {
    const std::string glob = core_glob(pattern, uses_pid, dump);
    const std::string name = kernels_name(pattern, uses_pid, dump);
    // A name may hold bytes that are no characters of this locale; in "C" each byte is one.
    expect(glob.empty() == name.empty(), "a pattern that makes no name makes no glob", glob);
    if (!name.empty())
      expect(::fnmatch(glob.c_str(), name.c_str(), FNM_PATHNAME) == 0, "a core is found", glob);
  }
  const auto handler = core_handler(pattern, dump);
  expect(handler.has_value() == (!pattern.empty() && (pattern[0] == '|' || pattern[0] == '@')),
         "a handler is told from a file");
  if (handler) expect(handler->substr(0, 10) == "handed to ", "a handler is named", *handler);
}

void check_cgroups(std::string_view cgroup, std::string_view mountinfo) {
  const auto file = oom_counter_file(cgroup, mountinfo);
  if (!file) return;
  expect(file->filename() == "memory.events" || file->filename() == "memory.oom_control", "it is a counter",
         file->string());
  const bool climbs = mountinfo.find("..") != std::string_view::npos;
  for (const auto& part : *file) expect(climbs || part != "..", "it lies below its mount", file->string());
}

void check_kills(std::string_view text) {
  const auto count = parse_oom_kills(text);
  if (count) {
    const std::string line = "oom_kill " + std::to_string(*count);
    expect(parse_oom_kills(line + "\n") == count, "a count is read as it is written", line);
    const auto digits = [](unsigned char c) { return std::isdigit(c) != 0; };
    expect(std::any_of(text.begin(), text.end(), digits), "a count has a digit", text);
    if (*count == 0)
      expect(text.find("oom_kill 0") != std::string_view::npos, "nought is written as such", text);
  }
  const auto kill = parse_oom_kill(text);
  if (!kill) return;
  expect(kill->pid > 0, "a process has a number");
  OomKill simple = *kill;
  simple.name = "a.out";
  simple.anonymous_bytes = simple.anonymous_bytes / 1024 * 1024;
  const std::string line =
      std::string(kill->in_cgroup ? "Memory cgroup out of memory" : "Out of memory") + ": Killed process " +
      std::to_string(kill->pid) +
      " (a.out) total-vm:1kB, anon-rss:" + std::to_string(simple.anonymous_bytes / 1024) + "kB";
  expect(parse_oom_kill(line) == simple, "a kill is read as it is written", line);
  expect(is_safe_line(describe(OomFinding{1, kill}, true)), "a finding is one line");
}

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::fuzz;
  auto texts = split(text_of(data, size), kSection, 6);
  texts.resize(6);
  for (std::size_t i = 0; i < 3; ++i) texts[i] = texts[i].substr(0, i == 0 ? kMaxPattern : kMaxName).c_str();
  check_core_pattern(texts[0], texts[1], texts[2]);
  check_cgroups(texts[3], texts[4]);
  check_kills(texts[5]);
  return 0;
}

// Texts of the kernel: "core_pattern <section> host <section> folder <section> /proc/PID/cgroup <section>
// mountinfo <section> memory.events, or a line of the kernel's log".
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/outcome/failure_report.h"
#include "launcher/outcome/oom.h"
#include "tests/fuzz/fuzz.h"

namespace ddprun::fuzz {
using namespace launcher;
namespace {

constexpr std::size_t kMaxPattern = 127;  // the kernel's
constexpr std::size_t kMaxName = 64;      // of a host; and enough of a folder

void check_core_pattern(std::string_view pattern, const std::string& cwd) {
  const std::string place = core_place(pattern, 4711, "/" + cwd);
  expect(place.empty() == pattern.empty(), "every pattern has a place", place);
  if (pattern.empty()) return;
  if (pattern[0] == '|' || pattern[0] == '@') {
    expect(place.substr(0, 10) == "handed to ", "a handler is named", place);
  } else {
    expect(place.ends_with(pattern), "a file's pattern is shown as it is", place);
  }
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
  check_core_pattern(texts[0], texts[2]);
  check_cgroups(texts[3], texts[4]);
  check_kills(texts[5]);
  return 0;
}

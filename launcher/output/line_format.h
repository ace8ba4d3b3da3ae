#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

/// Cuts a stream of bytes into lines, keeping what has no end yet until more comes. Of that it keeps no more
/// than kMaxLine bytes: a longer line is handed out in pieces.
class LineSplitter {
 public:
  static constexpr std::size_t kMaxLine = std::size_t{1} << 20;

  /// Calls on_line(std::string_view) for each line with its '\n', and for each piece, without one, of a line
  /// that is too long.
  template <typename OnLine>
  void add(std::string_view bytes, OnLine on_line);

  /// What has come of a line that has not ended yet.
  std::string_view partial() const { return partial_; }
  void drop_partial();
  /// Forgets what a terminal would have overwritten of it (see last_shown), which a progress bar makes
  /// endless.
  void drop_overwritten();

 private:
  std::string partial_;
};

/// What fills a prefix template.
struct LineSource {
  std::string role_name;
  int local_rank = 0;
  int rank = 0;
};

constexpr const char* kDefaultPrefixTemplate = "[${role_name}${local_rank}]:";

/// The template with ${role_name}, ${local_rank} and ${rank}, or $rank and so on, replaced, and "$$" made
/// "$". Other names stay as they are. This is Python's string.Template.safe_substitute, which torchrun
/// applies to TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE.
std::string line_prefix(std::string_view prefix_template, const LineSource& source);

/// Text that a terminal may show as it is: without control characters and escape sequences (also the C1 kind,
/// and in UTF-8), but with tabs, newlines and colours (SGR), which are reset at the end if the text leaves
/// them on. Bytes that are not UTF-8 become U+FFFD.
std::string sanitized(std::string_view text);

/// What a terminal shows of a line in the end: what follows the last '\r', unless nothing does. Without its
/// '\n'.
std::string_view last_shown(std::string_view line);

/// "2026-11-21T12:10:46.123Z"
std::string utc_timestamp(std::chrono::system_clock::time_point time);

/// True if the line holds one of the texts.
bool matches_any(std::string_view line, const std::vector<std::string>& texts);

/// The end of what a worker wrote, bounded.
class OutputTail {
 public:
  static constexpr std::size_t kMaxLines = 20;
  static constexpr std::size_t kMaxBytes = std::size_t{16} << 10;

  void add(std::string_view bytes);
  /// The last lines as a terminal would show them, without '\n'; the first may have lost its beginning.
  std::vector<std::string> lines() const;

 private:
  std::string bytes_;  // at most twice kMaxBytes
};

// -- details --

template <typename OnLine>
void LineSplitter::add(std::string_view bytes, OnLine on_line) {
  while (!bytes.empty()) {
    const auto newline = bytes.find('\n');
    const bool ends = newline != std::string_view::npos;
    std::string_view part = ends ? bytes.substr(0, newline + 1) : bytes;
    if (partial_.size() + part.size() > kMaxLine) part = part.substr(0, kMaxLine - partial_.size());
    bytes.remove_prefix(part.size());
    const bool whole = part.back() == '\n';
    if (partial_.empty() && whole) {
      on_line(part);
      continue;
    }
    partial_ += part;
    if (!whole && partial_.size() < kMaxLine) continue;
    on_line(std::string_view(partial_));
    drop_partial();
  }
}

}  // namespace ddprun::launcher

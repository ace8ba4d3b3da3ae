#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ddprun/common/invariant.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {

/// Cuts a byte stream into lines, and keeps an unfinished line until more arrives. Splits a line longer than
/// kMaxLine into pieces.
class LineSplitter {
 public:
  static constexpr std::size_t kMaxLine = std::size_t{1} << 20;

  /// Calls on_line(std::string_view) for each line with its '\n', and for each piece of an overlong line.
  /// together  lines may come in one call if all of them are in these bytes
  template <typename OnLine>
  void add(std::string_view bytes, OnLine on_line, bool together = false);

  /// The unfinished line.
  std::string_view partial() const { return partial_; }
  void drop_partial();
  /// Forgets the part that a terminal would have overwritten (see last_shown): a progress bar never ends.
  void drop_overwritten();

 private:
  std::string partial_;
};

/// The values for a prefix template.
struct LineSource {
  std::string role_name;
  int local_rank = 0;
  int rank = 0;
  std::string hostname;
};

constexpr const char* kDefaultPrefixTemplate = "[${role_name}${local_rank}]:";

/// The template, as in --log-line-prefix-template, with role_name, local_rank, rank and hostname
/// substituted().
std::string line_prefix(std::string_view prefix_template, const LineSource& source);

/// The text without anything that could drive a terminal: control characters and escape sequences, including
/// C1 and UTF-8 encoded ones. Keeps tabs, newlines and colours (SGR), and resets colours at the end. Bytes
/// that are not UTF-8 become U+FFFD.
std::string sanitized(std::string_view text);

/// True if the line contains one of the texts.
bool matches_any(std::string_view line, const std::vector<std::string>& texts);

/// The end of a worker's output, stdout and stderr as they came, for later readers. Bounded.
class RecentOutput {
 public:
  explicit RecentOutput(std::size_t kept = std::size_t{8} << 10) : kept_(kept) {}

  void add(std::string_view bytes) {
    total_ += bytes.size();
    if (bytes.size() > kept_) bytes.remove_prefix(bytes.size() - kept_);
    bytes_ += bytes;
    if (bytes_.size() > 2 * kept_) bytes_.erase(0, bytes_.size() - kept_);
    check_invariant(bytes_.size() <= 2 * kept_ && bytes_.size() <= total_, "recent output is bounded");
  }
  /// How many bytes it wrote in total.
  std::uint64_t total() const { return total_; }
  /// What is left of the bytes after the first `seen` ones.
  std::string_view after(std::uint64_t seen) const {
    const std::uint64_t fresh = total_ - (seen < total_ ? seen : total_);
    return std::string_view(bytes_).substr(
        fresh < bytes_.size() ? bytes_.size() - static_cast<std::size_t>(fresh) : 0);
  }

 private:
  std::size_t kept_;
  std::string bytes_;  // at most twice kept_
  std::uint64_t total_ = 0;
};

/// The end of a worker's output, bounded.
class OutputTail {
 public:
  static constexpr std::size_t kMaxLines = 20;
  static constexpr std::size_t kMaxBytes = std::size_t{16} << 10;

  void add(std::string_view bytes) { end_.add(bytes); }
  /// The last lines as a terminal would show them, without '\n'. The first may be cut at its beginning.
  std::vector<std::string> lines() const;

 private:
  RecentOutput end_{kMaxBytes};
};

// -- details --

template <typename OnLine>
void LineSplitter::add(std::string_view bytes, OnLine on_line, bool together) {
  while (!bytes.empty()) {
    const auto newline = together && partial_.empty() ? bytes.rfind('\n') : bytes.find('\n');
    const bool ends = newline != std::string_view::npos;
    std::string_view part = ends ? bytes.substr(0, newline + 1) : bytes;
    check_invariant(partial_.size() < kMaxLine, "an unfinished line is shorter than the longest");
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

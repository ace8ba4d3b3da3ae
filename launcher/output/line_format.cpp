#include "launcher/output/line_format.h"

#include <algorithm>

namespace ddprun::launcher {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
}

/// The size of "parameters, intermediates, final byte" that follow a CSI. 0 if it does not end.
std::size_t csi_size(std::string_view text) {
  std::size_t i = 0;
  while (byte_at(text, i) >= 0x20 && byte_at(text, i) <= 0x3f) ++i;
  return byte_at(text, i) >= 0x40 && byte_at(text, i) <= 0x7e ? i + 1 : 0;
}

/// Measures the escape sequences of one text, in linear time.
class Sequences {
 public:
  /// The size of the sequence at the start of `rest`, which is an ESC. For a sequence that never ends, only
  /// the introducer: the rest is harmless, and shown.
  std::size_t escape_size(std::string_view rest) {
    std::size_t i = 1;
    while (byte_at(rest, i) >= 0x20 && byte_at(rest, i) <= 0x2f) ++i;
    const unsigned type = byte_at(rest, i);
    if (type < 0x30 || type > 0x7e) return i;
    return i + 1 + (i == 1 ? body_size(rest[i], rest.substr(i + 1)) : 0);
  }

  /// The size of what follows ESC and `type`, or the C1 character that stands for both.
  std::size_t body_size(char type, std::string_view rest) {
    if (type == '[') return csi_size(rest);
    if (type == ']' || type == 'P' || type == 'X' || type == '^' || type == '_') return string_size(rest);
    return 0;
  }

 private:
  /// The size of what follows an OSC, DCS, SOS, PM or APC, including its end. 0 if it does not end.
  std::size_t string_size(std::string_view rest) {
    for (std::size_t i = 0; i < rest.size() && !no_end_ahead_; ++i) {
      if (rest[i] == '\a') return i + 1;
      if (rest.substr(i, 2) == "\x1b\\" || rest.substr(i, 2) == "\xc2\x9c") return i + 2;
    }
    no_end_ahead_ = true;
    return 0;
  }

  bool no_end_ahead_ = false;
};

/// True for "ESC [ numbers m".
bool is_colour(std::string_view sequence) {
  return sequence.size() >= 3 && sequence[1] == '[' && sequence.back() == 'm' &&
         sequence.find_first_not_of("0123456789;:", 2) == sequence.size() - 1;
}

}  // namespace

void LineSplitter::drop_partial() {
  constexpr std::size_t kOrdinary = 4096;
  partial_.clear();
  if (partial_.capacity() > kOrdinary) partial_.shrink_to_fit();
}

void LineSplitter::drop_overwritten() {
  const std::string_view shown = last_shown(partial_);
  check_invariant(shown.data() >= partial_.data() && shown.size() <= partial_.size(),
                  "what is shown is a part of the line");
  partial_.erase(0, static_cast<std::size_t>(shown.data() - partial_.data()));
}

std::string line_prefix(std::string_view prefix_template, const LineSource& source) {
  return substituted(prefix_template, [&](std::string_view name) -> std::optional<std::string> {
    if (name == "role_name") return source.role_name;
    if (name == "local_rank") return std::to_string(source.local_rank);
    if (name == "rank") return std::to_string(source.rank);
    if (name == "hostname") return source.hostname;
    return std::nullopt;
  });
}

std::string sanitized(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  bool coloured = false;
  Sequences sequences;
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    const bool valid = character.size > 0;
    const char32_t code = valid ? character.code : byte_at(text, 0);
    std::size_t size = valid ? character.size : 1;
    if (code == 0x1b) {
      size = sequences.escape_size(text);
      const std::string_view sequence = text.substr(0, size);
      if (is_colour(sequence)) {
        shown += sequence;
        coloured = sequence != "\x1b[m" && sequence != "\x1b[0m";
      }
    } else if (code >= 0x80 && code < 0xa0) {
      size += sequences.body_size(static_cast<char>(code - 0x40), text.substr(size));
    } else if (!valid) {
      shown += "\xef\xbf\xbd";
    } else if (code == '\t' || code == '\n' || (code >= 0x20 && code != 0x7f)) {
      shown += text.substr(0, size);
    }
    text.remove_prefix(size);
  }
  if (coloured) shown.insert(shown.size() - (shown.back() == '\n' ? 1 : 0), "\x1b[0m");
  return shown;
}

bool matches_any(std::string_view line, const std::vector<std::string>& texts) {
  return std::ranges::any_of(
      texts, [&](const std::string& text) { return line.find(text) != std::string_view::npos; });
}

std::vector<std::string> OutputTail::lines() const {
  std::string_view rest = end_.after(0);
  if (rest.size() > kMaxBytes) rest.remove_prefix(rest.size() - kMaxBytes);
  std::vector<std::string> lines;
  while (!rest.empty() && lines.size() < kMaxLines) {
    const auto newline = rest.substr(0, rest.size() - 1).rfind('\n');  // end of the line before the last
    const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    lines.emplace_back(last_shown(rest.substr(start)));
    rest = rest.substr(0, start);
  }
  std::ranges::reverse(lines);
  return lines;
}

}  // namespace ddprun::launcher

#include "launcher/cli/stream_selection.h"

#include <algorithm>
#include <string_view>

#include <ddprun/common/errors.h>
#include <ddprun/common/settings/parse.h>
#include <ddprun/common/text/printable.h>
#include "launcher/cli/options.h"

namespace ddprun::launcher {
namespace {

constexpr const char* kSelectionSyntax =
    "0 (none), 1 (stdout), 2 (stderr) or 3 (both) for all workers, or a list such as 0:3,1:1 of local ranks, "
    "each once";

[[noreturn]] void reject(const std::string& flag, const std::string& expected, const std::string& got) {
  throw UsageError(flag + ": expected " + expected + ", got '" + printable(got) + "'");
}

std::optional<int> parse_local_rank(std::string_view text) {
  return text.starts_with('-') ? std::nullopt : parse_integer(text, 0, kMaxWorkersPerNode - 1);
}

std::optional<Streams> parse_streams(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return {};
  const int bits = text[0] - '0';
  return Streams{(bits & 1) != 0, (bits & 2) != 0};
}

}  // namespace

bool StreamSelection::any() const {
  const auto some = [](const Streams& streams) { return streams.out || streams.err; };
  return some(others) ||
         std::any_of(by_rank.begin(), by_rank.end(), [&](const auto& entry) { return some(entry.second); });
}

Streams StreamSelection::of(int local_rank) const {
  const auto found = by_rank.find(local_rank);
  return found == by_rank.end() ? others : found->second;
}

StreamSelection parse_stream_selection(const std::string& flag, const std::string& text) {
  if (const auto all = parse_streams(text)) return {*all, {}};
  StreamSelection selection;
  for (const std::string_view piece : split(text, ',')) {
    const auto colon = piece.find(':');
    if (colon == std::string_view::npos) reject(flag, kSelectionSyntax, text);
    const auto rank = parse_local_rank(piece.substr(0, colon));
    const auto streams = parse_streams(piece.substr(colon + 1));
    if (!rank || !streams || !selection.by_rank.emplace(*rank, *streams).second)
      reject(flag, kSelectionSyntax, text);
  }
  return selection;
}

std::optional<std::set<int>> parse_local_ranks(const std::string& flag, const std::string& text) {
  if (text.empty()) return {};
  std::set<int> ranks;
  for (const std::string_view piece : split(text, ',')) {
    const auto rank = parse_local_rank(piece);
    if (!rank) reject(flag, "local ranks separated by commas, such as 0,2", text);
    ranks.insert(*rank);
  }
  return ranks;
}

std::vector<std::string> parse_line_filters(const std::string& text) {
  std::vector<std::string> filters(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      filters.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      filters.back() += ',';
      ++i;
    } else {
      filters.emplace_back();
    }
  }
  // An empty text would be in every line.
  std::erase_if(filters, [](const std::string& filter) { return filter.empty(); });
  return filters;
}

}  // namespace ddprun::launcher

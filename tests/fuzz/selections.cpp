// The small languages of --redirects and --tee, --local-ranks-filter, the line filters, --restart-on-codes
// Slurm's lists and --hosts: one text, read as each of them.
#include <ddprun/common/errors.h>
#include "launcher/cli/node_options.h"
#include "launcher/cli/options.h"
#include "launcher/events/restart_policy.h"
#include "tests/fuzz/fuzz.h"

namespace ddprun::fuzz {
using namespace launcher;
namespace {

void expect_usage_message(const UsageError& error, std::string_view flag) {
  expect_message(error.what());
  expect(std::string_view(error.what()).substr(0, flag.size()) == flag, "a message names the flag",
         error.what());
}

bool only_has(std::string_view text, std::string_view characters) {
  return text.find_first_not_of(characters) == std::string_view::npos;
}

std::string spelt(const Streams& streams) {
  return std::to_string((streams.out ? 1 : 0) + (streams.err ? 2 : 0));
}

std::string spelt(const StreamSelection& selection) {
  if (selection.by_rank.empty()) return spelt(selection.others);
  std::string text;
  for (const auto& [rank, streams] : selection.by_rank)
    text += (text.empty() ? "" : ",") + std::to_string(rank) + ":" + spelt(streams);
  return text;
}

void check_streams(const std::string& text) {
  const auto read = parse_stream_selection(text);
  if (!read) return;
  const StreamSelection& selection = *read;
  expect(only_has(text, "0123456789:,"), "a selection has no other characters", text);
  bool any = selection.others.out || selection.others.err;
  for (const auto& [rank, streams] : selection.by_rank) {
    expect(rank >= 0 && rank < kMaxWorkersPerNode, "a local rank is bounded", std::to_string(rank));
    expect(selection.of(rank) == streams, "a listed rank has its streams");
    any = any || streams.out || streams.err;
  }
  expect(selection.any() == any, "any() is right", text);
  expect(selection.of(kMaxWorkersPerNode) == selection.others, "ranks that are not listed are the others");
  expect(parse_stream_selection(spelt(selection)) == selection, "it is read as it is spelt",
         spelt(selection));
}

void check_hosts(const std::string& text) {
  const auto hosts = parse_hosts(text);
  if (!hosts) return;
  std::string again;
  for (const Host& host : *hosts) {
    expect(!host.target.empty() && host.target[0] != '-' && !host.name().empty() && host.name()[0] != '-' &&
               host.target.find_first_of(" \t\n'\"\\$`&|<>();") == std::string::npos,
           "a host is no option of ssh and no word of a shell", host.target);
    again += (again.empty() ? "" : ",") + host.target + (host.slots ? ":" + std::to_string(*host.slots) : "");
  }
  expect(parse_hosts(again) == hosts, "hosts are read as they are spelt", again);
}

void check_local_ranks(const std::string& text) {
  const auto ranks = parse_local_ranks(text);
  if (!ranks) return;
  expect(only_has(text, "0123456789,"), "local ranks have no other characters", text);
  std::string again;
  for (const int rank : *ranks) again += (again.empty() ? "" : ",") + std::to_string(rank);
  expect(parse_local_ranks(again) == ranks, "local ranks are read as they are spelt", again);
}

void check_line_filters(const std::string& text) {
  const auto filters = *parse_line_filters(text);
  std::string again;
  for (const std::string& filter : filters) {
    expect(!filter.empty(), "no filter is empty: it would be in every line");
    if (!again.empty()) again += ',';
    for (const char c : filter) again += c == ',' ? std::string(",,") : std::string(1, c);
  }
  expect(parse_line_filters(again) == filters, "filters are read as they are spelt", again);
}

void check_restart_codes(std::string_view text) try {
  const RestartCodes codes = parse_restart_codes(text);
  expect(!codes.empty(), "a text that is read holds a code: none would mean all");
  expect(*codes.begin() >= 1 && *codes.rbegin() <= 255, "codes are those of a shell");
  std::string again;
  for (const int code : codes) again += (again.empty() ? "" : ",") + std::to_string(code);
  expect(parse_restart_codes(again) == codes, "codes are read as they are spelt", again);
} catch (const UsageError& error) {
  expect_usage_message(error, "--restart-on-codes");
}

void check_slurm_lists(const std::string& text) {
  constexpr std::size_t kMost = 1000;
  if (const auto names = expand_host_list(text, kMost)) {
    expect(!names->empty() && names->size() <= kMost, "names are not too many",
           std::to_string(names->size()));
    std::string again;
    for (const std::string& name : *names) again += (again.empty() ? "" : ",") + name;
    expect(expand_host_list(again, kMost) == names, "names are read as they are", again);
  }
  if (const auto counts = expand_counts(text, kMost)) {
    expect(!counts->empty() && counts->size() <= kMost, "numbers are not too many");
    std::string again;
    for (const int count : *counts) again += (again.empty() ? "" : ",") + std::to_string(count) + "(x1)";
    expect(expand_counts(again, kMost) == counts, "numbers are read as they are spelt", again);
  }
}

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::fuzz;
  const std::string text(text_of(data, size));
  check_streams(text);
  check_local_ranks(text);
  check_line_filters(text);
  check_restart_codes(text);
  check_slurm_lists(text);
  check_hosts(text);
  return 0;
}

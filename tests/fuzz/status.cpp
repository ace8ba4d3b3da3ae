// A line of a worker's status channel, and what another node says of a rank.
#include <ddprun/common/status.h>
#include "launcher/status/progress.h"

#include <string>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  using namespace ddprun::fuzz;
  const std::string text(text_of(data, size));
  launcher::NodesBoard board;
  board.take("node", 0, text, {});
  const auto views = board.ranks({});
  expect(views.size() <= 1 && board.own_times({}).size() <= views.size(), "a text has one rank", text);
  for (const auto& view : views) expect(view["rank"].get<int>() >= 0, "a rank is not negative", text);
  const auto status = parse_status(text);
  if (!status) return 0;
  const std::string line = to_json_line(*status);
  expect(line.find('\n') == line.size() - 1, "a status is one line", line);
  const auto again = parse_status(line);
  expect(again == status, "a status comes back", line);
  for (const auto& count : {status->step, status->samples, status->memory.resident})
    expect(!count || *count >= 0, "a count is not negative", line);
  return 0;
}

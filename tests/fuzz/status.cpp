// A line of a worker's status channel.
#include <ddprun/common/status.h>

#include <string>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  using namespace ddprun::fuzz;
  const std::string text(text_of(data, size));
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

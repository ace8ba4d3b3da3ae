// The documents' Python programs, where they are at hand, beside ours.
#include <regex>
#include <set>

#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

std::set<std::string> epoch_lines(const std::string& output) {
  const std::regex line(R"(Rank \d+, Epoch \d+/\d+, Loss: \d\.\d{4})");
  std::set<std::string> lines;
  for (std::sregex_iterator match(output.begin(), output.end(), line), end; match != end; ++match)
    lines.insert(match->str());
  return lines;
}

}  // namespace

// Both draw samples and weights in the same order from seed 0, so that no weights need to be passed on.
TEST_CASE("linear prints what the document's program prints under torchrun", "[training]") {
  const auto script = beside_the_repository("anchors/linear.py");
  if (!fs::exists(script)) skip(script.string() + " is not there");
  const auto python = python_with("torch");
  const TempDir dir;
  Command theirs{
      {python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script.string(), "5"}};
  theirs.env = {{"OMP_NUM_THREADS", "1"}, {"PYTHONDONTWRITEBYTECODE", "1"}};
  auto ours = training("linear", 2, dir.path() / "run", {"--epochs=5"});
  ours.env["OMP_NUM_THREADS"] = "1";
  std::set<std::string> lines[2];
  for (int i = 0; i < 2; ++i) {
    Child child(i == 0 ? theirs : ours);
    const auto status = child.wait(kTraining);
    CAPTURE(child.err());
    REQUIRE(status == ExitStatus::exited(0));
    lines[i] = epoch_lines(child.out());
  }
  CHECK(lines[0].size() == 10);
  CHECK(lines[1] == lines[0]);
}

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

// The document's program, on two ranks of torchrun. The data, which a parent draws there, come from a
// generator; the weights right after the seed.
constexpr const char* kLinear = R"(
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
rank, epochs = dist.get_rank(), 5
parent = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(1000, 10, generator=parent), torch.randint(0, 2, (1000, 1), generator=parent).float())
torch.manual_seed(0)
model = DDP(torch.nn.Linear(10, 1))
criterion, optimizer = torch.nn.BCEWithLogitsLoss(), torch.optim.Adam(model.parameters(), lr=0.001)
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=32, sampler=sampler)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    epoch_loss = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    os.write(1, f"Rank {rank}, Epoch {epoch+1}/{epochs}, Loss: {epoch_loss/len(loader):.4f}\n".encode())
dist.destroy_process_group()
)";

TEST_CASE("linear prints what the document's program prints under torchrun", "[training]") {
  const auto python = python_with("torch");
  const TempDir dir;
  const auto script = dir.path() / "linear.py";
  write_file_atomic(script, kLinear);
  Command theirs{
      {python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script.string()}};
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

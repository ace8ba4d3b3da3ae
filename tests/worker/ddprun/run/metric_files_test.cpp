// Figures that a resumed training continues, without a lost or doubled row.
#include <ddprun/run/context.h>
#include <ddprun/run/metric_files.h>

#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/group/process_group.h>
#include <ddprun/report/metric_sink.h>
#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/python.h"

using namespace ddprun;

namespace {

/// The only rank of a job, and its files.
struct FilesOfRank {
  explicit FilesOfRank(const TempDir& dir) : csv(dir.path() / "metrics.csv"), events(dir.path() / "events") {}

  MetricFiles files() const { return MetricFiles(ctx, {.csv = csv, .tensorboard = events}); }
  /// The steps in the file, in its order.
  std::vector<int> steps() const {
    std::vector<int> all;
    for (const auto& row : report::read_metrics_csv(csv))
      if (row.back().first == "train_loss") all.push_back(static_cast<int>(row.front().second));
    return all;
  }

  WorkerEnv env = {};
  Context ctx{env, ddp::ProcessGroup::connect(env, {})};
  std::filesystem::path csv, events;
};

std::vector<int> up_to(int last) {
  std::vector<int> all;
  for (int i = 1; i <= last; ++i) all.push_back(i);
  return all;
}

/// Steps first .. last; a validation after each tenth.
void add_steps(MetricFiles& files, int first, int last) {
  for (int step = first; step <= last; ++step) {
    files.add({{"step", step}, {"train_loss", 1.0 / step}});
    if (step % 10 == 0) files.add({{"step", step}, {"val_loss", 2.0 / step}});
  }
}

}  // namespace

TEST_CASE("a resumed training continues its figures where the checkpoint was written", "[metric_files]") {
  const TempDir dir;
  const FilesOfRank rank(dir);
  const int saved = GENERATE(4, 20, 95);  // fewer and more than a checkpoint keeps
  std::optional<c10::impl::GenericDict> state;
  {
    auto files = rank.files();
    add_steps(files, 1, saved);
    state = files.state_dict();
    add_steps(files, saved + 1, saved + 15);  // lost with the process
  }
  CHECK(rank.steps() == up_to(saved + 15));
  auto files = rank.files();
  files.load_state_dict(*state);
  CHECK(rank.steps() == up_to(saved));
  add_steps(files, saved + 1, 120);
  CHECK(rank.steps() == up_to(120));
  CHECK(report::read_metrics_csv(rank.csv).size() == 132);
  CHECK_FALSE(std::filesystem::exists(rank.csv.string() + ".1"));

  test::check_python(dir.path(), "tensorboard", R"(
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator('events')
events.Reload()
assert [e.step for e in events.Scalars('train/loss')] == list(range(1, 121)), events.Scalars('train/loss')
assert [e.step for e in events.Scalars('val/loss')] == list(range(10, 121, 10)), events.Scalars('val/loss')
)");
}

TEST_CASE("rows that were not written before a rank was lost come from its checkpoint", "[metric_files]") {
  const TempDir dir;
  const FilesOfRank rank(dir);
  std::optional<c10::impl::GenericDict> state;
  {
    auto files = rank.files();
    add_steps(files, 1, 95);
    state = files.state_dict();
  }
  const auto text = read_file(rank.csv);
  const int left_out = GENERATE(1, 30);
  auto end = text.size();
  for (int line = 0; line < left_out; ++line) end = text.rfind('\n', end - 2) + 1;
  write_file_atomic(rank.csv, text.substr(0, end + 3));  // and the beginning of a line
  rank.files().load_state_dict(*state);
  CHECK(read_file(rank.csv) == text);
}

TEST_CASE("a metrics file of another training is kept", "[metric_files]") {
  const TempDir dir;
  const FilesOfRank rank(dir);
  std::vector<std::string> lines;
  configure_logging("test");
  log_to([&](const std::string& line) { lines.push_back(line); });
  std::optional<c10::impl::GenericDict> state;
  {
    auto files = rank.files();
    add_steps(files, 1, 12);
    state = files.state_dict();
  }
  const auto first = read_file(rank.csv);
  {
    auto files = rank.files();  // begins anew: there was no checkpoint
    add_steps(files, 1, 3);
  }
  CHECK(rank.steps() == up_to(3));
  CHECK(read_file(rank.csv.string() + ".1") == first);
  const std::string other = "step,train_loss\n1,5\n2,5\n3,5\n4,5\n5,5\n";
  write_file_atomic(rank.csv, other);
  rank.files().load_state_dict(*state);
  log_to({});
  CHECK(rank.steps() == up_to(12));
  CHECK(read_file(rank.csv.string() + ".2") == other);
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0],
             test::ContainsSubstring("metrics.csv: has rows that are not in the checkpoint; it is now "
                                     "metrics.csv.1"));
}

TEST_CASE("rows that a full disk refuses are written later, and the training goes on", "[metric_files]") {
  const TempDir dir;
  const FilesOfRank rank(dir);
  int warnings = 0;
  configure_logging("test");
  log_to([&](const std::string&) { ++warnings; });
  auto files = rank.files();
  add_steps(files, 1, 5);
  {
    const test::FileSizeLimit limit(std::filesystem::file_size(rank.csv) + 4);
    add_steps(files, 6, 8);
    CHECK(rank.steps() == up_to(5));
  }
  add_steps(files, 9, 9);
  log_to({});
  CHECK(rank.steps() == up_to(9));
  CHECK(warnings == 2);  // once for each file
}

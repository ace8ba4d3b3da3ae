#include <ddprun/train/record/run_record.h>

#include <torch/types.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include "tests/support/catch.h"
#include "tests/support/small_disk.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"
#include "tests/worker/ddprun/train/test_run.h"

namespace fs = std::filesystem;
using namespace ddprun;
using ddprun::test::ContainsSubstring;
using ddprun::test::fill_disk;
using ddprun::test::on_a_small_disk;
using ddprun::test::TestRun;

namespace {

train::TrainingState one_weight_state(std::int64_t step, const train::RunIdentity& identity = {}) {
  train::TrainingState state;
  state.identity = identity;
  state.model = test::make_dict();
  state.model.toGenericDict().insert("weight", torch::full({8'000}, static_cast<double>(step)));
  state.optimizer = test::make_dict();
  state.step = step;
  return state;
}

/// What a run does whose disk is full when it starts, and is not later. In its own process.
void start_on_a_full_disk(const fs::path& disk) {
  int warnings = 0;
  configure_logging("test");
  log_to([&](const std::string&) { ++warnings; });
  fill_disk(disk / "filler");
  TestRun record(disk, {.tensorboard = true});
  ensure(!fs::exists(record.metrics_path()), "nothing is left that would pass for a run");
  record.add_metrics({{"epoch", 0}});
  ensure(!fs::exists(record.metrics_path()), "nor after a row that has no place");
  const int before = warnings;
  for (int row = 0; row < 10; ++row) record.add_metrics({{"epoch", 0}});
  log_to({});
  ensure(before > 0 && warnings == before, "further rows are no news");
  for (const auto& entry : fs::directory_iterator(disk))
    ensure(!entry.path().filename().string().starts_with("events."), "no row begins a file of its own");
  fs::remove(disk / "filler");
  record.add_metrics({{"epoch", 1}});
  const auto text = read_file(record.metrics_path());
  ensure(text.starts_with("epoch,step,") && text.ends_with("\n1,,,,,,,,\n"),
         "then it is begun with its header");
  try {
    record.finish("{}");
  } catch (const IoError&) {
    return;
  }
  ensure(false, "a run without a checkpoint fails at its end");
}

}  // namespace

TEST_CASE("a disk that is full at the start ends no run, and nothing is left in a retry's way",
          "[run_record]") {
  const TempDir dir;
  on_a_small_disk(dir.path(), "size=64k", start_on_a_full_disk);
}

TEST_CASE("a disk that fills while a run goes on costs a checkpoint, not the run nor the one before",
          "[run_record]") {
  const TempDir dir;
  on_a_small_disk(dir.path(), "size=256k", [](const fs::path& disk) {
    TestRun record(disk);
    const auto older = record.checkpoint_folder() / "older.pt";
    record.save(one_weight_state(1, record.folder().identity()), {{record.checkpoint_path(), older}});
    record.flush();
    fill_disk(disk / "filler");
    record.save(one_weight_state(2), {{record.checkpoint_path()}, {older}});
    record.add_metrics({{"step", 2}});
    record.flush();
    ensure(train::find_resume(disk).state.step == 1 && fs::exists(older), "nothing is lost or deleted");
    ensure(std::distance(fs::directory_iterator(record.checkpoint_folder()), {}) == 2,
           "no part of one is left");
    fs::remove(disk / "filler");
    record.save(one_weight_state(3), {{record.checkpoint_path()}, {older}});
    record.finish("{}");
    ensure(train::read_checkpoint(record.checkpoint_path()).step == 3 && !fs::exists(older),
           "then it goes on");
  });
}

TEST_CASE("a branch whose earlier metrics have no place on a full disk does not begin", "[run_record]") {
  const TempDir dir;
  on_a_small_disk(dir.path(), "size=256k", [](const fs::path& disk) {
    train::RunIdentity first;
    {
      TestRun record(disk);
      first = record.folder().identity();
      record.save(one_weight_state(1, first));
      for (int step = 1; step <= 2000; ++step) record.add_metrics({{"step", step}});
      record.finish("{}");
    }
    const auto rows = read_file(disk / "metrics.csv");
    train::RunFolder folder(disk);
    folder.resume(first, /*is_newest=*/false, {"metrics.csv", "metrics.jsonl", "summary.json"});
    fill_disk(disk / "filler");
    try {
      const train::RunRecord record(folder, {.resumed_at = 1});
    } catch (const IoError& error) {
      ensure(error.error_number == ENOSPC, "the disk is full");
      ensure(read_file(disk / "metrics.csv") == rows, "nothing is lost");
      return;
    }
    ensure(false, "rows would be lost");
  });
}

TEST_CASE("on a full disk a branch's metrics keep none of the earlier one's later rows", "[run_record]") {
  const TempDir dir;
  on_a_small_disk(dir.path(), "size=1m", [](const fs::path& disk) {
    const auto csv = disk / "metrics.csv", jsonl = disk / "metrics.jsonl";
    train::RunIdentity first;
    {
      TestRun record(disk);
      first = record.folder().identity();
      record.save(one_weight_state(1, first));
      for (int step = 1; step <= 2000; ++step) record.add_metrics({{"step", step}});
      record.finish("{}");
    }
    train::RunFolder folder(disk);
    folder.resume(first, /*is_newest=*/false, {"metrics.csv", "metrics.jsonl", "summary.json"});
    for (const auto& file : {csv, jsonl}) folder.claim(file);  // the copies still have room
    fill_disk(disk / "filler");
    train::RunRecord record(folder, {.resumed_at = 1000});
    ensure(report::read_metrics_csv(csv).size() == 1000 && report::read_metrics_jsonl(jsonl).size() == 1000,
           "up to the resumed step");
    fs::remove(disk / "filler");
    record.add_metrics({{"step", 1001}});
    ensure(report::read_metrics_csv(csv).size() == 1001, "and they go on");
  });
}

TEST_CASE("a summary is a branch's only once that has ended", "[run_record]") {
  const TempDir dir;
  train::RunIdentity first;
  {
    TestRun record(dir.path());
    first = record.folder().identity();
    record.save(one_weight_state(1, first));
    record.finish("{}");
  }
  train::RunFolder folder(dir.path());
  folder.resume(first, /*is_newest=*/false, {"metrics.csv", "metrics.jsonl", "summary.json"});
  train::RunRecord record(folder, {.resumed_at = 1});
  CHECK(folder.branch_of(record.summary_path()) == 1);
  record.save(one_weight_state(2, folder.identity()), {{record.checkpoint_path()}});
  record.finish("{\"steps\": 2}");
  CHECK(folder.branch_of(record.summary_path()) == 2);
  CHECK(read_file(dir.path() / "summary-branch=1.json") == "{}");
}

TEST_CASE("a run that could write no checkpoint fails at its end, and says why", "[run_record]") {
  const TempDir dir;
  on_a_small_disk(dir.path(), "size=64k", [](const fs::path& disk) {
    TestRun record(disk);
    fill_disk(disk / "filler");
    record.save(one_weight_state(1));
    record.flush();
    fs::remove(disk / "filler");
    try {
      record.finish("{}");
    } catch (const IoError& error) {
      ensure(error.error_number == ENOSPC && fs::exists(record.summary_path()), "the disk was full");
      return;
    }
    ensure(false, "a run without a checkpoint fails at its end");
  });
}

TEST_CASE("without last.pt, one that was asked for may find no room", "[run_record]") {
  const TempDir dir;
  on_a_small_disk(dir.path(), "size=256k", [](const fs::path& disk) {
    TestRun record(disk, {.save_last = false});
    const auto best = record.checkpoint_folder() / "epoch=0.pt";
    record.save(one_weight_state(1), {{best}});
    record.flush();
    fill_disk(disk / "filler");
    record.save(one_weight_state(2));
    record.flush();
    fs::remove(disk / "filler");
    record.finish("{}");
    ensure(fs::exists(best) && record.lost_the_last(), "the run's own checkpoint is there");
  });
}

TEST_CASE("without last.pt, a run whose last own checkpoint found no room fails at its end", "[run_record]") {
  const TempDir dir;
  on_a_small_disk(dir.path(), "size=256k", [](const fs::path& disk) {
    TestRun record(disk, {.save_last = false});
    ensure(!record.has_checkpoint(), "there is none yet");
    record.save(one_weight_state(1), {{record.checkpoint_folder() / "epoch=0.pt"}});
    record.flush();
    fill_disk(disk / "filler");
    record.save(one_weight_state(2), {{record.checkpoint_folder() / "epoch=1.pt"}});
    record.flush();
    fs::remove(disk / "filler");
    ensure(record.has_checkpoint(), "a run that is ended now can be continued");
    try {
      record.finish("{}");
    } catch (const IoError& error) {
      ensure(std::string(error.what()).find("the existing one is older") != std::string::npos, error.what());
      return;
    }
    ensure(false, "the better weights are lost");
  });
}

TEST_CASE("a resumed run that could write no checkpoint fails at its end", "[run_record]") {
  const TempDir dir;
  on_a_small_disk(dir.path(), "size=256k", [](const fs::path& disk) {
    {
      TestRun record(disk);
      record.save(one_weight_state(1, record.folder().identity()));
      record.finish("{}");
    }
    TestRun record(disk, {.resumed_at = 1});
    fill_disk(disk / "filler");
    record.save(one_weight_state(2, record.folder().identity()));
    try {
      record.finish("{}");
    } catch (const IoError& error) {
      ensure(error.error_number == ENOSPC && train::find_resume(disk).state.step == 1, "the disk was full");
      return;
    }
    ensure(false, "what it has trained since is lost");
  });
}

TEST_CASE("a run removes what it left half-written, and nothing else", "[run_record]") {
  const TempDir dir;
  {
    TestRun record(dir.path());
    record.save(one_weight_state(1, record.folder().identity()));
    record.finish("{}");
    fs::create_directory(dir.path() / "best");
    record.folder().claim(dir.path() / "best/config.json");
  }
  const std::vector<const char*> ours = {".summary.json.tmp.12", "checkpoints/.last.pt.tmp.34",
                                         ".run.json.tmp.5", "best/.config.json.tmp.6"};
  const std::vector<const char*> others = {"notes",
                                           "figures/samples.png",
                                           "report.html",
                                           "events.out.tfevents.1.host.2.0",
                                           ".other.csv.tmp.12",
                                           "checkpoints/mine.pt",
                                           "checkpoints/.hidden",
                                           "checkpoints/.mine.pt.tmp.34",
                                           "checkpoints/.last.pt.tmp.old"};
  fs::create_directory(dir.path() / "figures");
  for (const auto& names : {ours, others})
    for (const char* name : names) std::ofstream(dir.path() / name) << "earlier\n";
  const TestRun record(dir.path(), {.resumed_at = 1});
  for (const char* name : ours) CHECK_FALSE(fs::exists(dir.path() / name));
  for (const char* name : others) {
    CAPTURE(name);
    CHECK(fs::exists(dir.path() / name));
  }
}

TEST_CASE("a resumed run keeps the checkpoints and the rows up to its step", "[run_record]") {
  const TempDir dir;
  {
    TestRun record(dir.path());
    for (std::int64_t step = 1; step <= 4; ++step) {
      record.add_metrics(
          {{"step", static_cast<double>(step)}, {"train_loss", 1.0 / static_cast<double>(step)}});
      if (step == 2) record.save(one_weight_state(step, record.folder().identity()));
    }
  }
  const auto found = train::find_resume(dir.path());
  REQUIRE(found.state.step == 2);
  std::ofstream(dir.path() / "checkpoints/.last.pt.tmp.34") << "cut";
  {
    TestRun record(dir.path(), {.resumed_at = 2, .tensorboard = true});
    record.add_metrics({{"step", 3}, {"train_loss", 0.25}});
    CHECK_NOTHROW(record.finish("{}"));  // there is a checkpoint, if not of this run
  }
  CHECK_THAT(read_file(dir.path() / "metrics.csv"),
             ContainsSubstring("_second\n,1,,1,,,,,\n,2,,0.5,,,,,\n,3,,0.25,,,,,\n"));
  CHECK(read_file(dir.path() / "metrics.jsonl") ==
        "{\"step\":1,\"train_loss\":1}\n{\"step\":2,\"train_loss\":0.5}\n{\"step\":3,\"train_loss\":0.25}\n");
  CHECK(fs::exists(dir.path() / "checkpoints/last.pt"));
  CHECK_FALSE(fs::exists(dir.path() / "checkpoints/.last.pt.tmp.34"));
}

TEST_CASE("a resumed run drops the rows of its step that came after its checkpoint", "[run_record]") {
  const TempDir dir;
  {
    TestRun record(dir.path(), {.columns = {"step", "train_loss", "val_loss"}});
    record.add_metrics({{"step", 1}, {"train_loss", 3}});
    record.add_metrics({{"step", 2}, {"train_loss", 2}});
    CHECK(record.rows() == 2);  // the checkpoint, in the validation of step 2
    record.add_metrics({{"step", 2}, {"val_loss", 1}});
  }
  TestRun record(dir.path(),
                 {.columns = {"step", "train_loss", "val_loss"}, .resumed_at = 2, .resumed_rows = 2});
  CHECK(record.rows() == 2);
  record.add_metrics({{"step", 2}, {"val_loss", 1}});
  CHECK(read_file(dir.path() / "metrics.csv") == "step,train_loss,val_loss\n1,3,\n2,2,\n2,,1\n");
}

TEST_CASE("a resumed run goes on in its files if they have just its rows", "[run_record]") {
  const TempDir dir;
  const std::vector<std::string> columns = {"step", "train_loss"};
  const auto csv = dir.path() / "metrics.csv", jsonl = dir.path() / "metrics.jsonl";
  {
    TestRun record(dir.path(), {.columns = columns});
    for (const double step : {1, 2}) record.add_metrics({{"step", step}, {"train_loss", 3}});
  }
  // Links to the files that a rewrite would replace.
  fs::create_hard_link(csv, dir.path() / "same.csv");
  fs::create_hard_link(jsonl, dir.path() / "same.jsonl");
  const auto resume = [&](const std::vector<std::string>& of, std::int64_t rows) {
    TestRun record(dir.path(), {.columns = of, .resumed_at = rows, .resumed_rows = rows});
    CHECK(record.rows() == rows);
    record.add_metrics({{"step", static_cast<double>(rows + 1)}});
    return fs::hard_link_count(csv) == 2 && fs::hard_link_count(jsonl) == 2;
  };
  CHECK(resume(columns, 2));
  CHECK(read_file(csv) == "step,train_loss\n1,3\n2,3\n3,\n");
  CHECK(read_file(jsonl) == "{\"step\":1,\"train_loss\":3}\n{\"step\":2,\"train_loss\":3}\n{\"step\":3}\n");
  SECTION("not if there are later rows") {
    CHECK_FALSE(resume(columns, 2));
    CHECK(read_file(csv) == "step,train_loss\n1,3\n2,3\n3,\n");
  }
  SECTION("not if as many rows are of later steps") {
    CHECK_FALSE([&] {
      TestRun record(dir.path(), {.columns = columns, .resumed_at = 2, .resumed_rows = 3});
      return fs::hard_link_count(csv) == 2;
    }());
    CHECK(read_file(csv) == "step,train_loss\n1,3\n2,3\n");
  }
  SECTION("not with other columns") {
    CHECK_FALSE(resume({"step"}, 3));
    CHECK(read_file(csv) == "step,train_loss\n1,3\n2,3\n3,\n4,\n");
  }
  SECTION("not if a file is cut") {
    fs::resize_file(csv, fs::file_size(csv) - 1);
    CHECK_FALSE(resume(columns, 2));
    CHECK(read_file(csv) == "step,train_loss\n1,3\n2,3\n3,\n");
  }
}

TEST_CASE("a resumed run keeps figures that it has no more", "[run_record]") {
  const TempDir dir;
  TestRun(dir.path(), {.columns = {"step", "rss_mb_rank1"}}).add_metrics({{"step", 1}, {"rss_mb_rank1", 7}});
  TestRun record(dir.path(), {.columns = {"step", "rss_mb"}, .resumed_at = 1});
  record.add_metrics({{"step", 2}, {"rss_mb", 8}});
  CHECK(read_file(dir.path() / "metrics.csv") == "step,rss_mb,rss_mb_rank1\n1,,7\n2,8,\n");
}

TEST_CASE("metrics that cannot be read are begun anew by a resumed run", "[run_record]") {
  const TempDir dir;
  std::ofstream(dir.path() / "metrics.csv") << "step\nmany\n";
  TestRun record(dir.path(), {.columns = {"step", "loss"}, .resumed_at = 7});
  record.add_metrics({{"step", 8}, {"loss", 1}});
  CHECK(read_file(dir.path() / "metrics.csv") == "step,loss\n8,1\n");
  CHECK(read_file(dir.path() / "metrics-branch=1.csv") == "step\nmany\n");
}

TEST_CASE("metrics that cannot be opened are refused by a resumed run, and stay", "[run_record]") {
  const TempDir dir;
  const auto file = dir.path() / GENERATE("metrics.csv", "metrics.jsonl");
  TestRun(dir.path(), {.columns = {"step"}}).add_metrics({{"step", 1}});
  fs::remove(file);
  fs::create_symlink("gone", file);
  CHECK_THROWS_WITH(TestRun(dir.path(), {.columns = {"step"}, .resumed_at = 1}),
                    ContainsSubstring(file.string() + ": cannot open"));
  CHECK(fs::is_symlink(file));
}

TEST_CASE("each of a resumed run's files of metrics keeps its rows, and gets the other's if it has none",
          "[run_record]") {
  const TempDir dir;
  const auto csv = dir.path() / "metrics.csv", jsonl = dir.path() / "metrics.jsonl";
  {
    TestRun record(dir.path(), {.columns = {"step", "loss"}});
    for (const double step : {1, 2, 3}) record.add_metrics({{"step", step}, {"loss", 0.1}});
    record.add_metrics({{"step", 4}, {"loss", std::nan("")}});
  }
  std::string in_csv = "step,loss\n1,0.1\n2,0.1\n3,0.1\n";
  std::string in_jsonl = "{\"step\":1,\"loss\":0.1}\n{\"step\":2,\"loss\":0.1}\n{\"step\":3,\"loss\":0.1}\n";
  SECTION("the one is gone") { fs::remove(csv); }
  SECTION("the other is gone") { fs::remove(jsonl); }
  SECTION("the one is empty") { fs::resize_file(csv, 0); }
  SECTION("the one has fewer") {
    std::ofstream(csv) << (in_csv = "step,loss\n1,0.1\n");
    CHECK(TestRun(dir.path(), {.columns = {"step", "loss"}, .resumed_at = 3}).rows() == 1);
  }
  TestRun(dir.path(), {.columns = {"step", "loss"}, .resumed_at = 3}).add_metrics({{"step", 9}});
  CHECK(read_file(csv) == in_csv + "9,\n");
  CHECK(read_file(jsonl) == in_jsonl + "{\"step\":9}\n");
}

namespace {

class CountingSink : public report::MetricSink {
 public:
  explicit CountingSink(int& rows) : rows_(rows) {}
  void add(const report::MetricRow&) override { ++rows_; }

 private:
  int& rows_;
};

}  // namespace

TEST_CASE("rows go to every sink of a run", "[run_record]") {
  const TempDir dir;
  int rows = 0;
  TestRun record(dir.path());
  record.add_sink([&] { return std::make_unique<CountingSink>(rows); });
  record.add_metrics({{"step", 1}});
  record.add_metrics({{"step", 2}});
  CHECK(rows == 2);
}

TEST_CASE("a checkpoint that fails for another reason than a full disk ends the run at its next call",
          "[run_record]") {
  const TempDir dir;
  TestRun record(dir.path());
  record.save(one_weight_state(1), {{dir.path() / "none" / "a.pt"}});
  CHECK_THROWS_WITH(record.flush(), ContainsSubstring("a.pt: cannot create: No such file"));
}

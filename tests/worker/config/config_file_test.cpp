#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/config/parse_words.h"
#include "worker/config/config.h"
#include "worker/tasks/registry.h"

using namespace ddprun;
using namespace ddprun::worker;
using ddprun::test::ContainsSubstring;
using ddprun::test::parse;

namespace {

std::string write(const TempDir& dir, const std::string& text) {
  const auto path = dir.path() / "config.toml";
  std::ofstream(path) << text;
  return path.string();
}

}  // namespace

TEST_CASE("each commented line of --print-config is a setting without its '#'", "[config_file]") {
  const TempDir dir;
  const auto file = dir.path() / "config.toml";
  // Each of these takes the place of a setting above it, or needs another one.
  const std::set<std::string> pairs = {"sam points", "sam checkpoint", "sam embedding_cache"};
  for (const auto& task : worker::all_tasks()) {
    worker::Config config;
    config.task = task.name;
    task.set_defaults(config);
    const auto text = worker::to_toml(config);
    std::istringstream lines(text);
    int tried = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto key = line.substr(std::min<std::size_t>(2, line.size()), line.find(" = ") - 2);
      if (!line.starts_with("# ") || pairs.contains(task.name + " " + key)) continue;
      auto uncommented = text;
      uncommented.replace(uncommented.find(line), 2, "");
      write_file_atomic(file, uncommented);
      CAPTURE(task.name, line);
      CHECK_NOTHROW(test::parse({task.name, "--config", file.string()}));
      ++tried;
    }
    CHECK(tried > 5);
  }
}

TEST_CASE("a setting that tasks share by name is that of the file's task", "[config]") {
  const TempDir dir;
  CHECK(parse({"--config", write(dir, "task = \"linear\"\n[data]\ndata = \"table.csv\"\n")}).data.source ==
        "table.csv");
  const auto sam = parse(
      {"--config", write(dir, "task = \"sam\"\n[data]\ndata = \"cells\"\n[model]\nloss = \"dice_bce\"\n")});
  CHECK(sam.data.source == "cells");
  CHECK(sam.model.loss == "dice_bce");
  CHECK_THROWS_WITH(parse({"--config", write(dir, "task = \"toy\"\n[model]\nloss = \"dice\"\n")}),
                    ContainsSubstring(":3: model.loss: expected mse or cross_entropy, got 'dice'"));
}

TEST_CASE("a configuration file sets what its keys say, and the command line wins", "[config]") {
  const TempDir dir;
  const auto file = write(dir, R"(task = "mnist"
[data]
data = "fashion-mnist"
limit_train = 640
[optim]
lr = 1
[train]
epochs = 2
[ddp]
bucket_view = false
zero1 = true
timeout = 1.5
)");
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"mnist", "--config", file}, {"--config=" + file}, {"--config", file}}) {
    const auto config = parse(words);
    CHECK(config.task == "mnist");
    CHECK(config.data.source == "fashion-mnist");
    CHECK(config.data.limit_train == 640);
    CHECK(config.train.optim.optimizer.lr == 1.0);
    CHECK(config.train.epochs == 2);
    CHECK_FALSE(config.train.parallel.bucket_view);
    CHECK(config.train.parallel.zero1);
    CHECK(config.timeout == std::chrono::milliseconds(1500));
    CHECK(config.train.batch_size == 128);  // not in the file
  }
  const auto config = parse({"mnist", "--epochs=7", "--config", file, "--zero1=false"});
  CHECK(config.train.epochs == 7);
  CHECK_FALSE(config.train.parallel.zero1);
}

TEST_CASE("every task's effective configuration is a file that gives the same again", "[config]") {
  const TempDir dir;
  for (const auto& task : all_tasks()) {
    CAPTURE(task.name);
    std::vector<std::string> words = {task.name};
    for (std::size_t i = 0; i < task.positionals.size(); ++i) words.push_back(std::to_string(i + 2));
    for (const char* word : {"--seed=9007199254740992", "--lr=0.1", "--init-weights=a \"b\"\n\\c\x7f\xc3\xa9",
                             "--fsdp", "--no-progress", "--limit_train", "17"})
      words.emplace_back(word);
    const auto config = parse(words);
    const auto again = parse({"--config", write(dir, to_toml(config))});
    CHECK(to_json(again) == to_json(config));
    CHECK(to_toml(again) == to_toml(config));
  }
}

TEST_CASE("a run folder holds the configuration that repeats the run", "[config]") {
  const TempDir dir;
  const auto config = parse({"mnist", "--lr=0.25", "--out", (dir.path() / "run").string()});
  train::RunFolder folder(make_run_folder(config));
  folder.begin({});
  const HeldPort port;
  auto group = ddp::ProcessGroup::connect(test::rank_env(port, 0, 1), {});
  write_run_files(folder, config, group);
  group.close();
  const auto again = parse({"mnist", "--config", (dir.path() / "run/config.toml").string()});
  CHECK(to_json(again) == to_json(config));
  CHECK(again.train.out.empty());  // a repeated run has its own folder
}

TEST_CASE("other programs' names and values are taken in a file too, or answered with its line", "[config]") {
  const TempDir dir;
  const auto config =
      parse({"mnist", "--config",
             write(dir,
                   "[train]\nmax_epochs = 3\nmax_time = \"00:10:00\"\n[precision]\nprecision = 16\n"
                   "accelerator = \"cpu\"\nstrategy = \"ddp\"\n")});
  CHECK(config.train.epochs == 3);
  CHECK(config.train.max_seconds == 600);
  CHECK(config.train.precision.precision == train::Precision::k16Mixed);
  CHECK(config.device == ddp::DeviceChoice::kCpu);
  CHECK_THROWS_WITH(parse({"mnist", "--config", write(dir, "\ndevices = 2\n")}),
                    ContainsSubstring("config.toml:2: devices=2: start one worker for each device"));
  CHECK_THROWS_WITH(parse({"mnist", "--config", write(dir, "[train]\nepochs = 1\nmax_epochs = 2\n")}),
                    ContainsSubstring(":3: train.max_epochs: set a second time, after "));
}

TEST_CASE("a mistake in a configuration file is one line that names file and line", "[config]") {
  const auto [text, message] = GENERATE(table<const char*, const char*>({
      {"task = \"mnist\"\n\n[train]\nepochs = 0\n",
       ":4: train.epochs: expected an integer from 1 to 2147483647, got 0"},
      {"[train]\nepochs = \"5\"\n", ":2: train.epochs: expected an integer, got '5'"},
      {"[train]\nepochs = 1.0\n", ":2: train.epochs: expected an integer, got 1.0"},
      {"[optim]\nlr = \"big\"\n", ":2: optim.lr: expected a number, got 'big'"},
      {"[optim]\nlr = -1\n", ":2: optim.lr: expected a number above 0, got -1"},
      {"[optim]\nlr = nan\n", ":2: optim.lr: expected a number above 0, got nan"},
      {"[ddp]\nzero1 = 1\n", ":2: ddp.zero1: expected true or false, got 1"},
      {"[ddp]\ncomm_hook = \"fp8\"\n", ":2: ddp.comm_hook: expected none, fp16, bf16 or powersgd, got 'fp8'"},
      {"[data]\ndata = [\"a\"]\n", ":2: data.data: expected a string, got a list"},
      {"[train]\nepoch = 5\n", ":2: unknown key 'epoch' in [train]"},
      {"[train]\nlr = 5\n", ":2: 'lr' belongs under [optim], not [train]"},
      {"epochs = 5\n", ":1: 'epochs' belongs under [train]"},
      {"\n[trian]\nepochs = 5\n", ":2: unknown section [trian]"},
      {"nonsense = 5\n", ":1: unknown key 'nonsense'"},
      {"train = 5\n", ":1: unknown key 'train'"},
      {"[train]\nepochs = \n", ":2: "},
      {"task = \"toy\"\n", ":1: task: expected mnist, got 'toy'"},
      {"task = 1\n", ":1: task: expected a string, got 1"},
  }));
  const TempDir dir;
  const auto file = write(dir, text);
  CHECK_THROWS_AS(parse({"mnist", "--config", file}), UsageError);
  CHECK_THROWS_WITH(
      parse({"mnist", "--config", file}),
      ContainsSubstring(file + (message[0] == ':' ? "" : ": ") + message) && !ContainsSubstring("\n"));
}

TEST_CASE("a configuration file that is not there or names no task is refused", "[config]") {
  const TempDir dir;
  CHECK_THROWS_AS(parse({"mnist", "--config", (dir.path() / "none.toml").string()}), IoError);
  CHECK_THROWS_WITH(
      parse({"--config", write(dir, "[train]\nepochs = 1\n")}),
      ContainsSubstring(": names no task: expected an entry such as task = \"mnist\", or worker TASK"));
  CHECK_THROWS_WITH(parse({"--config", write(dir, "# a\ntask = \"foo\"\n")}),
                    ContainsSubstring(".toml:2: unknown task 'foo', expected a task ("));
  CHECK_THROWS_WITH(parse({"--config=/none.toml"}),
                    "--config: /none.toml: cannot open: No such file or directory");
  CHECK_THROWS_WITH(parse({"mnist", "--config"}), "--config: expected a value, got none");
}

TEST_CASE("flags that exclude each other are refused in a file too", "[config]") {
  const TempDir dir;
  CHECK_THROWS_WITH(parse({"mnist", "--config", write(dir, "[ddp]\nfsdp = true\nzero1 = true\n")}),
                    "--fsdp and --zero1: expected at most one of them");
}

// What single calls leave of a folder after a power failure at any moment: disk_log.cpp, which is linked with
// this program, records them here.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/run_folder.h>
#include "tests/support/catch.h"
#include "tests/support/crashed_disk.h"

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kNames = {"metrics.csv"};

/// What may be left after each of the changes that act() makes in a folder.
template <typename Act>
std::vector<std::vector<Tree>> left_of(const fs::path& folder, const Act& act) {
  const TempDir beside;
  CrashedDisk disk(folder);
  ::setenv("DDPRUN_TEST_DISK_LOG", (beside.path() / "log").c_str(), 1);
  ::setenv("DDPRUN_TEST_DISK_FOLDER", folder.c_str(), 1);
  act();
  ::unsetenv("DDPRUN_TEST_DISK_FOLDER");
  std::mt19937 random;
  std::vector<std::vector<Tree>> left;
  for (const auto& change : read_disk_log(beside.path() / "log", folder)) {
    disk.apply(change);
    left.push_back(disk.after_power_failure(random));
  }
  CHECK(hash_of(disk.now()) == hash_of(read_tree(folder)));
  return left;
}

bool has(const Tree& tree, const std::string& bytes) {
  return std::ranges::any_of(tree,
                             [&](const auto& file) { return file.second && file.second->bytes == bytes; });
}

/// A run of one state and one row of metrics.
train::RunIdentity make_run(const fs::path& out) {
  create_folders(out / "checkpoints");
  train::RunFolder folder(out);
  folder.begin(kNames);
  folder.claim(out / "metrics.csv");
  write_file_atomic(out / "metrics.csv", "step\n1\n");
  const auto last = folder.checkpoints() / "last.pt";
  folder.make_way(last);
  train::save_checkpoint(last, {.model = train::make_state(),
                                .optimizer = train::make_state(),
                                .step = 10,
                                .identity = folder.identity()});
  folder.wrote(last, {});
  return folder.identity();
}

}  // namespace

TEST_CASE("a disk that fails loses what was not synced, and nothing else", "[power_failure]") {
  const TempDir dir;
  const auto left = left_of(dir.path(), [&] {
    std::ofstream(dir.path() / "file") << "not synced";
    write_file_atomic(dir.path() / "synced", "synced");
    fs::rename(dir.path() / "file", dir.path() / "moved");
  });
  bool lost = false, torn = false, kept = false, unmoved = false;
  for (const auto& tree : left.back()) {
    CHECK(tree.at("synced")->bytes == "synced");
    unmoved = unmoved || tree.contains("file");
    CHECK((tree.contains("file") || tree.contains("moved")));
    const auto& bytes = tree.at(tree.contains("file") ? "file" : "moved")->bytes;
    kept = kept || bytes == "not synced";
    lost = lost || bytes.empty();
    torn = torn || bytes == "not s";
  }
  CHECK((lost && torn && kept && unmoved));
}

TEST_CASE("a new folder is on disk before anything counts as being in it", "[power_failure]") {
  const TempDir dir;
  const auto left = left_of(dir.path(), [&] {
    create_folders(dir.path() / "run/checkpoints");
    write_file_atomic(dir.path() / "run/checkpoints/last.pt", "state");
  });
  for (const auto& tree : left.back()) CHECK(has(tree, "state"));
}

TEST_CASE("an earlier branch's last state and metrics are on disk before others take their names",
          "[power_failure]") {
  const TempDir dir;
  const auto run = make_run(dir.path());
  const auto state = read_file(dir.path() / "checkpoints/last.pt");
  const auto left = left_of(dir.path(), [&] {
    train::RunFolder folder(dir.path());
    folder.resume(run, /*is_newest=*/false, kNames);
    folder.claim(dir.path() / "metrics.csv");
    write_file_atomic(dir.path() / "metrics.csv", "step\n");
    const auto last = folder.checkpoints() / "last.pt";
    folder.make_way(last);
    write_file_atomic(last, "of the new branch");
    folder.wrote(last, {});
  });
  for (const auto& trees : left)
    for (const auto& tree : trees) {
      CHECK(has(tree, state));
      CHECK(has(tree, "step\n1\n"));
    }
}

TEST_CASE("a run that is set aside is in its place or beside it, and never in between", "[power_failure]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  const auto run = make_run(out);
  const auto state = read_file(out / "checkpoints/last.pt");
  std::ofstream(out / "checkpoints/mine.txt") << "mine";
  const auto left = left_of(out, [&] { train::RunFolder(out).begin(kNames); });
  for (const auto& trees : left)
    for (const auto& tree : trees) {
      CHECK(has(tree, state));
      CHECK(has(tree, "mine"));
      const auto copy = TempDir::at(dir.path() / "copy");
      write_tree(tree, copy.path());
      const auto found = train::find_resume(copy.path());
      const auto now = train::RunFolder(copy.path()).identity().run;
      if (found.found()) CHECK((found.state.identity == run && (now.empty() || now == run.run)));
    }
  CHECK(read_file(out / "checkpoints/mine.txt") == "mine");
}

}  // namespace ddprun::test

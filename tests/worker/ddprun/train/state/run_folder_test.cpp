#include <ddprun/train/state/run_folder.h>

#include <fcntl.h>
#include <sys/file.h>
#include <torch/types.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/moved_files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/loop/resume.h>
#include <ddprun/train/state/checkpoint.h>
#include "tests/support/catch.h"
#include "tests/support/small_disk.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"

namespace fs = std::filesystem;
using namespace ddprun;
using namespace ddprun::test;
using namespace ddprun::train;

namespace {

const std::vector<std::string> kNames = {"metrics.csv", "summary.json"};

TrainingState state_of(const RunIdentity& identity, std::int64_t step) {
  TrainingState state;
  state.model = make_dict();
  state.model.toGenericDict().insert("weight", torch::full({3}, static_cast<double>(step)));
  state.optimizer = make_dict();
  state.step = step;
  state.identity = identity;
  return state;
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_directory()) names.insert(entry.path().lexically_relative(folder).string());
  return names;
}

void save(RunFolder& folder, const std::string& name, std::int64_t step,
          const std::vector<fs::path>& doomed = {}) {
  CheckpointWriter writer(folder);
  writer.write(state_of(folder.identity(), step), {{folder.checkpoints() / name}, doomed});
  writer.flush();
}

/// A run with metrics and a checkpoint of step 10.
RunIdentity make_run(const fs::path& path) {
  fs::create_directories(path / "checkpoints");
  RunFolder folder(path);
  folder.begin(kNames);
  folder.claim(path / "metrics.csv");
  write(path / "metrics.csv", "step\n");
  save(folder, "last.pt", 10);
  return folder.identity();
}

}  // namespace

TEST_CASE("a run lists its files before it writes them, and its list survives it", "[run_folder]") {
  const TempDir dir;
  const auto identity = make_run(dir.path());
  CHECK(identity.run.size() == 8);
  CHECK(identity.branch == 1);
  const RunFolder folder(dir.path());
  CHECK(folder.identity() == identity);
  CHECK(folder.branch_of(dir.path() / "metrics.csv") == 1);
  CHECK(folder.branch_of(dir.path() / "checkpoints/last.pt") == 1);
  CHECK(folder.branch_of(dir.path() / "mine.txt") == 0);
}

TEST_CASE("a file that a run has not listed is neither replaced nor removed", "[run_folder]") {
  const TempDir dir;
  make_run(dir.path());
  write(dir.path() / "figures/loss.png", "mine");
  write(dir.path() / "best/config.json", "mine");
  write(dir.path() / "checkpoints/mine.pt", "mine");
  RunFolder folder(dir.path());
  CHECK_THROWS_WITH(folder.claim(dir.path() / "figures/loss.png"),
                    ContainsSubstring("loss.png: was not written by this run, which leaves it alone"));
  CHECK_THROWS_AS(folder.claim(dir.path() / "best/config.json"), IoError);
  save(folder, "next.pt", 11, {dir.path() / "checkpoints/mine.pt", dir.path() / "checkpoints/last.pt"});
  CHECK(fs::exists(dir.path() / "checkpoints/mine.pt"));
  CHECK_FALSE(fs::exists(dir.path() / "checkpoints/last.pt"));
}

TEST_CASE("what a new run replaces is kept until it has a checkpoint, and what is not listed for good",
          "[run_folder]") {
  const TempDir dir;
  const auto earlier = make_run(dir.path());
  const auto before = files_in(dir.path());
  write(dir.path() / "notes.txt", "mine");
  write(dir.path() / "summary.json", "mine");
  RunFolder folder(dir.path());
  CHECK(folder.in_the_way(kNames, /*goes_on=*/false) == dir.path() / "summary.json");
  folder.begin(kNames);
  CHECK(folder.identity().run != earlier.run);
  const auto replaced = dir.path() / ("replaced-" + earlier.run);
  auto moved = before;
  moved.insert("summary.json");
  CHECK(files_in(replaced) == moved);
  CHECK(fs::exists(dir.path() / "notes.txt"));
  CHECK(find_resume(replaced).state.step == 10);  // it is a whole run
  SECTION("a run that was killed before its first checkpoint begins again") {
    RunFolder again(dir.path());
    again.begin(kNames);
    CHECK(again.identity() == folder.identity());
    CHECK(files_in(replaced) == moved);
    save(again, "last.pt", 1);
  }
  SECTION("with its first checkpoint") { save(folder, "last.pt", 1); }
  CHECK(files_in(replaced) == std::set<std::string>{"summary.json"});
  CHECK(files_in(dir.path()) == std::set<std::string>{"run.json", "notes.txt", "checkpoints/last.pt",
                                                      "replaced-" + earlier.run + "/summary.json"});
}

TEST_CASE("what a link leads to is not removed with a replaced run", "[run_folder]") {
  const TempDir dir, safe;
  const auto earlier = make_run(dir.path());
  RunFolder folder(dir.path());
  folder.begin(kNames);
  const auto replaced = dir.path() / ("replaced-" + earlier.run);
  const auto moved = GENERATE(false, true) ? replaced / "checkpoints" : replaced;
  fs::rename(moved, safe.path() / "moved");
  fs::create_directory_symlink(safe.path() / "moved", moved);
  const auto before = files_in(safe.path());
  save(folder, "last.pt", 1);
  CHECK(files_in(safe.path()) == before);
}

TEST_CASE("what a link in the place of any folder of a run leads to stays", "[run_folder]") {
  const TempDir dir, safe;
  const auto earlier = make_run(dir.path());
  auto best = dir.path() / "best";
  const auto kept = safe.path() / "kept";
  if (GENERATE(true, false))
    RunFolder(dir.path()).claim(best / "config.json");
  else  // a folder that is itself listed
    best = RunFolder(dir.path()).begin_shards(dir.path() / "checkpoints/last.pt", 10).front();
  const auto name = best.lexically_relative(dir.path());
  write(best / "config.json", "{}");
  RunFolder folder(dir.path());
  SECTION("an --overwrite is refused") {
    fs::rename(best, kept);
    fs::create_directory_symlink(kept, best);
    const auto before = files_in(dir.path());
    CHECK_THROWS_WITH(folder.begin(kNames), ContainsSubstring(best.string() + ": is a link"));
    CHECK(files_in(dir.path()) == before);
  }
  SECTION("a run that was set aside stays") {
    folder.begin(kNames);
    const auto aside = folder.replaced();
    fs::rename(aside / name, kept);
    fs::create_directory_symlink(kept, aside / name);
    const auto before = files_in(aside);
    const bool is_away = GENERATE(false, true);  // the disk
    if (is_away) fs::rename(kept, safe.path() / "away");
    save(folder, "last.pt", 1);
    if (is_away) fs::rename(safe.path() / "away", kept);
    CHECK(files_in(aside) == before);
  }
  CHECK(fs::exists(kept / "config.json"));
}

TEST_CASE("metrics of a run that was killed before its first checkpoint are kept", "[run_folder]") {
  const TempDir dir;
  fs::create_directories(dir.path() / "checkpoints");
  const auto begin = [&](const char* job) {
    ::setenv("DDPRUN_SHARED_JOB_ID", job, 1);
    RunFolder folder(dir.path());
    folder.begin(kNames);
    ::unsetenv("DDPRUN_SHARED_JOB_ID");
    folder.claim(dir.path() / "metrics.csv");
    write(dir.path() / "metrics.csv", std::string(job) + "\n");
  };
  begin("first");
  begin("first");  // restarted
  CHECK_FALSE(fs::exists(dir.path() / "metrics-branch=1.csv"));
  begin("second");
  CHECK(read_file(dir.path() / "metrics-branch=1.csv") == "first\n");
  CHECK(read_file(dir.path() / "metrics.csv") == "second\n");
}

TEST_CASE("the metrics of a branch come back, not those of a run that began before it", "[run_folder]") {
  const TempDir dir;
  const auto metrics = dir.path() / "metrics.csv";
  fs::create_directories(dir.path() / "checkpoints");
  RunIdentity first;
  for (const char* rows : {"killed\n", "first\n"}) {
    RunFolder folder(dir.path());
    folder.begin(kNames);
    folder.claim(metrics);
    write(metrics, rows);
    first = folder.identity();
    if (rows[0] == 'f') save(folder, "last.pt", 1);
  }
  RunFolder second(dir.path());
  second.resume(first, /*is_newest=*/false, kNames);
  second.claim(metrics);
  write(metrics, "second\n");
  RunFolder third(dir.path());
  third.resume(first, /*is_newest=*/true, kNames);
  CHECK(read_file(metrics) == "first\n");
}

TEST_CASE("a replaced run that was resumed, or is being resumed, is not removed", "[run_folder]") {
  const TempDir dir;
  const auto earlier = make_run(dir.path());
  RunFolder folder(dir.path());
  folder.begin(kNames);
  const auto replaced = dir.path() / ("replaced-" + earlier.run);
  CHECK(folder.replaced() == replaced);
  UniqueFd lock;
  if (GENERATE(true, false)) {
    RunFolder(replaced).resume(earlier, /*is_newest=*/true, kNames);
  } else {
    lock.reset(::open(replaced.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    REQUIRE(::flock(lock.get(), LOCK_EX | LOCK_NB) == 0);
  }
  const auto before = files_in(replaced);
  save(folder, "last.pt", 1);
  CHECK(files_in(replaced) == before);
  CHECK(RunFolder(dir.path()).replaced().empty());
}

TEST_CASE("a file that took the place of a listed checkpoint stays when the run is set aside",
          "[run_folder]") {
  const TempDir dir;
  make_run(dir.path());
  const auto last = dir.path() / "checkpoints/last.pt";
  if (GENERATE(true, false))
    save_checkpoint(last, state_of({"00000000", 1}, 1000));
  else
    serialize::write_pt(last, make_dict());
  const auto others = read_file(last);
  RunFolder folder(dir.path());
  folder.begin(kNames);
  save(folder, "last.pt", 1);
  CHECK(read_file(dir.path() / "checkpoints/last-earlier.pt") == others);
  CHECK(read_checkpoint(last).step == 1);
}

TEST_CASE("a run that was killed before it listed its first checkpoint is set aside", "[run_folder]") {
  const TempDir dir;
  fs::create_directories(dir.path() / "checkpoints");
  RunFolder killed(dir.path());
  killed.begin(kNames);
  killed.make_way(dir.path() / "checkpoints/last.pt");
  save_checkpoint(dir.path() / "checkpoints/last.pt", state_of(killed.identity(), 10));
  RunFolder(dir.path()).begin(kNames);
  CHECK_FALSE(find_resume(dir.path()).found());
  CHECK(find_resume(dir.path() / ("replaced-" + killed.identity().run)).state.step == 10);
}

TEST_CASE("a run whose checkpoints are behind a link is not set aside: others may use them", "[run_folder]") {
  const TempDir dir;
  const auto elsewhere = dir.path() / "elsewhere", run = dir.path() / "run";
  const auto identity = make_run(run);
  fs::rename(run / "checkpoints", elsewhere);
  const bool relative = GENERATE(true, false);
  fs::create_directory_symlink(relative ? "../elsewhere" : elsewhere, run / "checkpoints");
  const auto before = files_in(dir.path());
  CHECK_THROWS_WITH(RunFolder(run).begin(kNames), ContainsSubstring("run/checkpoints: is a link"));
  CHECK(files_in(dir.path()) == before);
  CHECK(RunFolder(run).identity() == identity);
  CHECK(find_resume(run).state.step == 10);
}

TEST_CASE("a run whose checkpoints are on a disk of their own cannot be set aside, and keeps its list",
          "[run_folder]") {
  const TempDir dir;
  const auto checkpoints = dir.path() / "checkpoints";
  fs::create_directory(checkpoints);
  on_a_small_disk(checkpoints, "size=1m", [&](const fs::path&) {
    const auto run = make_run(dir.path());
    try {
      RunFolder(dir.path()).begin(kNames);
      ensure(false, "it is refused");
    } catch (const IoError& error) {
      ensure(error.path == checkpoints, "by the name of the folder that cannot be moved");
    }
    ensure(RunFolder(dir.path()).identity() == run && find_resume(dir.path()).state.step == 10,
           "and is still a run");
    ensure(!fs::exists(dir.path() / ("replaced-" + run.run)) &&
               read_file(dir.path() / "run.json").find("set_aside") == std::string::npos,
           "of which nothing says that it is replaced");
  });
}

TEST_CASE("a branch that was killed before it wrote a file is the newest: its job does not continue another",
          "[run_folder]") {
  const TempDir dir;
  const auto first = make_run(dir.path());
  RunFolder folder(dir.path());
  folder.resume(first, /*is_newest=*/false, kNames);
  CHECK(folder.identity() == RunIdentity{first.run, 2});
  CHECK(RunFolder(dir.path()).identity() == folder.identity());
}

TEST_CASE("a checkpoint whose replacement does not fit on the disk is kept once", "[run_folder]") {
  const TempDir dir;
  const auto first = make_run(dir.path());
  const auto last = dir.path() / "checkpoints/last.pt";
  RunFolder folder(dir.path());
  folder.resume(first, /*is_newest=*/false, kNames);
  for (int attempt = 0; attempt < 3; ++attempt) folder.make_way(last);
  const std::set<std::string> names = {"last.pt", "last-branch=1.pt"};
  CHECK(files_in(dir.path() / "checkpoints") == names);
  SECTION("also by another process, after the run has written another one") {
    save(folder, "epoch=1-step=20.pt", 20);
    RunFolder later(dir.path());
    later.resume(folder.identity(), /*is_newest=*/true, kNames);
    save(later, "last.pt", 21);
    CHECK(files_in(dir.path() / "checkpoints") ==
          std::set<std::string>{"last.pt", "last-branch=1.pt", "epoch=1-step=20.pt"});
  }
  SECTION("a link of the user's to another one is no such copy") {
    save(folder, "last.pt", 20);
    fs::create_hard_link(last, dir.path() / "checkpoints/last-mine.pt");
    RunFolder back(dir.path());
    back.resume(first, /*is_newest=*/false, kNames);
    back.make_way(last);
    CHECK(files_in(dir.path() / "checkpoints").contains("last-branch=2.pt"));
  }
  SECTION("a file that somebody puts there meanwhile is kept, too") {
    fs::remove(last);
    write(last, "mine");
    folder.make_way(last);
    CHECK(read_file(dir.path() / "checkpoints/last-earlier.pt") == "mine");
  }
  SECTION("and one of after the next checkpoint") {
    save(folder, "last.pt", 20);
    CHECK(files_in(dir.path() / "checkpoints") == names);
    folder.remove({last});
    write(last, "mine");
    folder.make_way(last);
    CHECK(read_file(dir.path() / "checkpoints/last-earlier.pt") == "mine");
  }
}

TEST_CASE("a resume from an earlier state begins a branch, and the earlier branch's last state is kept",
          "[run_folder]") {
  const TempDir dir;
  const auto first = make_run(dir.path());
  RunFolder folder(dir.path());
  SECTION("the newest state continues its branch") {
    folder.resume(first, /*is_newest=*/true, kNames);
    CHECK(folder.identity() == first);
    save(folder, "last.pt", 20);
    CHECK(files_in(dir.path() / "checkpoints") == std::set<std::string>{"last.pt"});
  }
  SECTION("an earlier one does not") {
    folder.resume(first, /*is_newest=*/false, kNames);
    CHECK(folder.identity() == RunIdentity{first.run, 2});
    CHECK(find_resume(dir.path()).state.step == 10);  // the new branch has nothing yet
    CHECK_FALSE(find_resume(dir.path(), {}, folder.identity()).found());
    save(folder, "last.pt", 5);
    CHECK(files_in(dir.path() / "checkpoints") == std::set<std::string>{"last.pt", "last-branch=1.pt"});
    CHECK(find_resume(dir.path()).state.step == 5);  // fewer steps, and newer
    CHECK(find_resume(dir.path(), {}, first).state.step == 5);
    CHECK(read_checkpoint(dir.path() / "checkpoints/last-branch=1.pt").step == 10);
    CHECK(RunFolder(dir.path()).branch_of(dir.path() / "checkpoints/last-branch=1.pt") == 1);
    if (GENERATE(true, false))
      fs::remove(dir.path() / "run.json");  // then nothing says of which branch it is
    write(dir.path() / "checkpoints/last.pt", "damaged");
    CHECK_THROWS_WITH(find_resume(dir.path()),
                      ContainsSubstring("last.pt") && ContainsSubstring("nothing was changed; --resume ") &&
                          ContainsSubstring("last-branch=1.pt continues an earlier branch"));
  }
}

TEST_CASE("metrics of an earlier branch are kept", "[run_folder]") {
  const TempDir dir;
  const auto first = make_run(dir.path());
  RunFolder folder(dir.path());
  folder.resume(first, /*is_newest=*/false, kNames);
  folder.claim(dir.path() / "metrics.csv");
  CHECK(read_file(dir.path() / "metrics-branch=1.csv") == "step\n");
}

TEST_CASE("the best checkpoint of an earlier branch is not removed by a better one", "[run_folder]") {
  const TempDir dir;
  const auto first = make_run(dir.path());
  const auto best = dir.path() / "checkpoints/epoch=0-step=10.pt", other = best.parent_path() / "epoch=1.pt";
  RunFolder folder(dir.path());
  save(folder, best.filename(), 10);
  folder.resume(first, /*is_newest=*/false, kNames);
  save(folder, other.filename(), 5, {best});
  CHECK(fs::exists(best));
  CHECK(folder.branch_of(best) == 1);
  save(folder, "epoch=2.pt", 15, {other});
  CHECK_FALSE(fs::exists(other));
}

TEST_CASE("another run's checkpoints, put where a run has its own, are not replaced", "[run_folder]") {
  const TempDir dir;
  const auto path = dir.path() / "run", checkpoints = path / "checkpoints";
  make_run(path);
  RunFolder folder(path);
  fs::rename(checkpoints, dir.path() / "moved");
  SECTION("those of another run") {
    make_run(dir.path() / "other");
    fs::copy(dir.path() / "other/checkpoints", checkpoints, fs::copy_options::recursive);
    const auto before = read_file(checkpoints / "last.pt");
    CHECK_THROWS_WITH(save(folder, "last.pt", 20), ContainsSubstring("holds another run's checkpoints"));
    CHECK_THROWS_WITH(folder.begin_shards(checkpoints / "last.pt", 20),
                      ContainsSubstring("holds another run's checkpoints"));
    CHECK(read_file(checkpoints / "last.pt") == before);
    CHECK(std::distance(fs::directory_iterator(checkpoints), {}) == 1);
  }
  SECTION("those of another run, of which one has the name of the next") {
    make_run(dir.path() / "other");
    fs::create_directory(checkpoints);
    fs::copy(dir.path() / "other/checkpoints/last.pt", checkpoints / "next.pt");
    CHECK_THROWS_WITH(save(folder, "next.pt", 20), ContainsSubstring("holds another run's checkpoints"));
  }
  SECTION("its own on another disk, beside another run's") {
    make_run(dir.path() / "other");
    fs::copy(dir.path() / "other/checkpoints/last.pt", dir.path() / "moved/other.pt");
    fs::create_directory_symlink(dir.path() / "moved", checkpoints);
    folder.begin_shards(checkpoints / "last.pt", 20);
    save(folder, "last.pt", 20);
    CHECK(fs::exists(checkpoints / "other.pt"));
    CHECK(fs::exists(dir.path() / "moved/last.pt"));
  }
}

TEST_CASE("a run whose folder was moved away does not write into what another run has at its place",
          "[run_folder]") {
  const TempDir dir;
  const auto path = dir.path() / "run", elsewhere = dir.path() / "elsewhere",
             last = path / "checkpoints/last.pt";
  make_run(path);
  RunFolder moved(path);
  fs::rename(path, elsewhere);
  if (GENERATE(true, false))
    make_run(path);
  else
    fs::copy(elsewhere, path, fs::copy_options::recursive);  // of the same run
  const auto before = read_file(last), list = read_file(path / "run.json");
  CHECK_THROWS_WITH(save(moved, "last.pt", 20), ContainsSubstring("was moved away while the run trained"));
  CHECK_THROWS_WITH(moved.claim(path / "summary.json"),
                    ContainsSubstring("was moved away while the run trained"));
  CHECK_THROWS_AS(moved.end_within(""), IoError);
  CHECK(read_file(last) == before);
  CHECK(read_file(path / "run.json") == list);
}

TEST_CASE("without its list a branch keeps the weights and the summary of the one before", "[run_folder]") {
  const TempDir dir;
  const auto identity = make_run(dir.path());
  const auto names = std::vector<std::string>{"metrics.csv", "summary.json", "weights.ckpt"};
  for (const auto& name : names) write(dir.path() / name, name);
  fs::remove(dir.path() / "run.json");
  RunFolder folder(dir.path());
  folder.resume(identity, /*is_newest=*/false, names);
  for (const char* kept : {"metrics-earlier.csv", "summary-earlier.json", "weights-earlier.ckpt"})
    CHECK(fs::exists(dir.path() / kept));
}

TEST_CASE("a checkpoint that the list names and that is gone is missed, not taken for a new start",
          "[run_folder]") {
  const TempDir dir;
  make_run(dir.path());
  fs::remove_all(dir.path() / "checkpoints");
  if (GENERATE(true, false)) save_checkpoint(dir.path() / "checkpoints/stray.pt", state_of({}, 1000));
  CHECK_THROWS_WITH(find_resume(dir.path()), ContainsSubstring("last.pt: is gone, though run.json lists it"));
  fs::create_directories(dir.path() / "checkpoints");
  serialize::write_pt(dir.path() / "checkpoints/last.pt", make_dict());
  CHECK_THROWS_WITH(find_resume(dir.path()),
                    ContainsSubstring("last.pt: is not the checkpoint that run.json lists"));
}

TEST_CASE("a folder of an older version is read, and nothing in it is removed or replaced", "[run_folder]") {
  const TempDir dir;
  const auto folder_path = dir.path() / "checkpoints";
  fs::create_directories(folder_path);
  save_checkpoint(folder_path / "last.pt", state_of({}, 10));
  save_checkpoint(folder_path / "epoch=1.pt", state_of({}, 5));
  write(dir.path() / "metrics.csv", "step\n");
  const auto found = find_resume(dir.path());
  CHECK(found.state.step == 10);
  RunFolder folder(dir.path());
  SECTION("a run that goes on from it") {
    folder.resume(found.state.identity, /*is_newest=*/true, kNames);
    CHECK(folder.branch_of(dir.path() / "metrics.csv") == 1);
    save(folder, "last.pt", 11, {folder_path / "epoch=1.pt"});
    CHECK(files_in(folder_path) == std::set<std::string>{"last.pt", "last-earlier.pt", "epoch=1.pt"});
    CHECK(find_resume(dir.path()).state.step == 11);
  }
  SECTION("a run that replaces it") {
    folder.begin(kNames);
    save(folder, "last.pt", 1);
    CHECK(files_in(dir.path() / "replaced-earlier") ==
          std::set<std::string>{"metrics.csv", "checkpoints/last.pt", "checkpoints/epoch=1.pt"});
  }
}

TEST_CASE("a state that a run had no time to list is its own all the same", "[run_folder]") {
  const TempDir dir;
  const auto identity = make_run(dir.path());
  const auto newest = dir.path() / "checkpoints/epoch=1.pt";
  RunFolder(dir.path()).make_way(newest);
  save_checkpoint(newest, state_of(identity, 11));
  RunFolder folder(dir.path());
  folder.resume(identity, /*is_newest=*/true, kNames);
  CHECK(folder.branch_of(newest) == 1);
}

TEST_CASE("what a killed run's newest state was to replace is removed when the run goes on from it",
          "[run_folder]") {
  const TempDir dir;
  const auto identity = make_run(dir.path());
  const auto checkpoints = dir.path() / "checkpoints";
  const auto best = checkpoints / "epoch=0.pt", better = checkpoints / "epoch=1.pt";
  {
    RunFolder folder(dir.path());
    save(folder, "epoch=0.pt", 10);
    folder.make_way(better, {best});
    if (GENERATE(false, true)) folder.wrote(dir.path() / "events.out", {});  // meanwhile
  }
  const auto resumed = [&](const RunIdentity& state, bool is_newest) {
    RunFolder(dir.path()).resume(state, is_newest, kNames);
    return files_in(checkpoints);
  };
  SECTION("and was written") {
    save_checkpoint(better, state_of(identity, 11));
    CHECK(resumed(identity, true) == std::set<std::string>{"last.pt", "epoch=1.pt"});
    CHECK(RunFolder(dir.path()).branch_of(best) == 0);
  }
  SECTION("and was written, and another process of the job goes on") {
    save_checkpoint(better, state_of(identity, 11));
    RunFolder(dir.path()).go_on();
    CHECK(files_in(checkpoints) == std::set<std::string>{"last.pt", "epoch=1.pt"});
    CHECK(RunFolder(dir.path()).branch_of(better) == 1);
  }
  SECTION("and was not written whole") {
    write(better, "half");
    CHECK(resumed(identity, true) == std::set<std::string>{"last.pt", "epoch=0.pt", "epoch=1.pt"});
  }
  SECTION("and was written, but an earlier one is resumed") {
    save_checkpoint(better, state_of(identity, 11));
    CHECK(resumed(identity, false) == std::set<std::string>{"last.pt", "epoch=0.pt", "epoch=1.pt"});
    save_checkpoint(better, state_of(identity, 11));
    CHECK(resumed({identity.run, 2}, true) == std::set<std::string>{"last.pt", "epoch=0.pt", "epoch=1.pt"});
  }
}

TEST_CASE("a copy of a state that somebody made is continued, and never replaced or removed",
          "[run_folder]") {
  const TempDir dir;
  const auto identity = make_run(dir.path());
  const auto checkpoints = dir.path() / "checkpoints";
  for (const char* name : {"good.pt", "epoch=1-step=10-best.pt"})
    fs::copy_file(checkpoints / "last.pt", checkpoints / name);
  const auto copy = read_file(checkpoints / "good.pt");
  const bool resumes = GENERATE(true, false);
  if (resumes && GENERATE(true, false)) fs::remove(dir.path() / "run.json");
  RunFolder folder(dir.path());
  if (resumes)
    folder.resume(identity, /*is_newest=*/true, kNames);
  else
    folder.begin(kNames);
  save(folder, "last.pt", 20, {checkpoints / "good.pt"});
  CHECK(folder.branch_of(checkpoints / "good.pt") == 0);
  CHECK(read_file(checkpoints / "good.pt") == copy);
  CHECK(read_file(checkpoints / "epoch=1-step=10-best.pt") == copy);
  fs::remove(checkpoints / "last.pt");
  if (resumes) CHECK(find_resume(dir.path()).state.step == 10);
}

TEST_CASE("without its list a run knows its states by the names that it gives", "[run_folder]") {
  const TempDir dir;
  const auto identity = make_run(dir.path());
  const auto checkpoints = dir.path() / "checkpoints";
  const std::set<std::string> own = {"epoch=1-step=10.pt", "epoch=12-step=345-v2.pt"};
  for (const auto& name : own) fs::copy_file(checkpoints / "last.pt", checkpoints / name);
  fs::remove(dir.path() / "run.json");
  RunFolder folder(dir.path());
  folder.resume(identity, /*is_newest=*/true, kNames);
  for (const auto& name : own) CHECK(folder.branch_of(checkpoints / name) == 1);
}

TEST_CASE("a run that has weights or a summary, and no checkpoint, is set aside", "[run_folder]") {
  const TempDir dir;
  const std::string name = GENERATE("checkpoint.pt", "summary.json");
  fs::create_directories(dir.path() / "checkpoints");
  RunFolder folder(dir.path());
  folder.begin(kNames);
  const auto ended = folder.identity();
  folder.claim(dir.path() / name);
  write(dir.path() / name, "of hours");
  SECTION("until the new one has a checkpoint") {
    folder.begin(kNames);
    CHECK(folder.identity().run != ended.run);
    CHECK(read_file(dir.path() / ("replaced-" + ended.run) / name) == "of hours");
    save(folder, "last.pt", 1);
    CHECK_FALSE(fs::exists(dir.path() / ("replaced-" + ended.run)));
  }
  SECTION("for good, if nobody has said that it is to be overwritten") {
    folder.begin(kNames, /*overwrites=*/false);
    save(folder, "last.pt", 1);
    CHECK(read_file(dir.path() / "replaced-earlier" / name) == "of hours");
    CHECK(RunFolder(dir.path() / "replaced-earlier").identity() == ended);
  }
}

TEST_CASE(
    "the run that an interrupted --overwrite replaced is kept by --resume auto, though that has a summary",
    "[run_folder]") {
  const TempDir dir;
  const auto earlier = make_run(dir.path());
  RunFolder folder(dir.path());
  folder.begin(kNames);
  folder.claim(dir.path() / "summary.json");
  write(dir.path() / "summary.json", "of hours");
  folder.begin(kNames, /*overwrites=*/false);
  save(folder, "last.pt", 1);
  CHECK(find_resume(dir.path() / ("replaced-" + earlier.run)).state.step == 10);
}

TEST_CASE("a list moves back after everything else, or stays", "[run_folder]") {
  const TempDir dir;
  const auto from = dir.path() / "from", to = dir.path() / "to";
  for (const char* name : {"run.json", "metrics.csv", "figures/a", "figures/b"}) write(from / name, name);
  write(to / "figures/a", GENERATE("mine", "fig", "figures/a, whole"));
  const bool part = read_file(to / "figures/a") != "mine";
  CHECK(move_back(from, to, "run.json") == part);
  CHECK(fs::exists(from) == !part);
  if (!part) CHECK(files_in(from) == std::set<std::string>{"run.json", "figures/a"});
  CHECK(read_file(to / "figures/a").size() >= 4);
  CHECK(fs::exists(to / "run.json") == part);
}

TEST_CASE("a state of another run is not continued", "[run_folder]") {
  const TempDir dir;
  make_run(dir.path());
  save_checkpoint(dir.path() / "checkpoints/other.pt", state_of({"00000000", 7}, 1000));
  CHECK(find_resume(dir.path()).state.step == 10);
}

TEST_CASE("a list that is another program's, or damaged, is refused by name", "[run_folder]") {
  const TempDir dir;
  write(dir.path() / "run.json", GENERATE("{\"run\": 7}", "[]", "{\"run\": \"a\", \"files\": [1]}", ""));
  CHECK_THROWS_WITH(RunFolder(dir.path()), ContainsSubstring("run.json: is not the list of a run's files"));
}

TEST_CASE("a new run is not continued from a state that an earlier one had kept", "[run_folder]") {
  const TempDir dir;
  const auto checkpoints = dir.path() / "checkpoints";
  fs::create_directories(checkpoints);
  save_checkpoint(checkpoints / "last.pt", state_of({}, 10));
  RunFolder old(dir.path());
  old.resume({}, /*is_newest=*/true, kNames);
  save(old, "last.pt", 11);
  REQUIRE(fs::exists(checkpoints / "last-earlier.pt"));
  RunFolder(dir.path()).begin(kNames);
  CHECK_FALSE(find_resume(dir.path()).found());
  CHECK(fs::exists(dir.path() / ("replaced-" + old.identity().run) / "checkpoints/last-earlier.pt"));
}

TEST_CASE("a run that is kept for good does not say that it is set aside", "[run_folder]") {
  const TempDir dir;
  const auto earlier = make_run(dir.path());
  const bool overwrites = GENERATE(true, false);
  for (const bool again : {true, overwrites}) RunFolder(dir.path()).begin(kNames, again);
  const auto list = read_file(dir.path() / ("replaced-" + earlier.run) / "run.json");
  CHECK((list.find("set_aside") != std::string::npos) == overwrites);
  CHECK_FALSE(fs::exists(dir.path() / RunFolder::kMoving));
}

TEST_CASE("a damaged list of a run that was set aside keeps no other from beginning again", "[run_folder]") {
  const TempDir dir;
  const auto earlier = make_run(dir.path());
  RunFolder(dir.path()).begin(kNames);
  write(dir.path() / ("replaced-" + earlier.run) / "run.json", "[]");
  RunFolder again(dir.path());
  CHECK_NOTHROW(again.begin(kNames, /*overwrites=*/false));
}

TEST_CASE("a file that cannot be read stays where there is no run that it could belong to", "[run_folder]") {
  const TempDir dir;
  fs::create_directories(dir.path() / "checkpoints");
  write(dir.path() / "checkpoints/mine.pt", "half");
  RunFolder(dir.path()).begin(kNames);
  CHECK(read_file(dir.path() / "checkpoints/mine.pt") == "half");
}

TEST_CASE("shards that an unfinished copy of a checkpoint may need are kept when the run is replaced",
          "[run_folder]") {
  const TempDir dir;
  const auto identity = make_run(dir.path());
  const auto shards = RunFolder(dir.path()).begin_shards(dir.path() / "checkpoints/last.pt", 10).front();
  write(shards / "rank-0", "weights");
  const auto whole = read_file(dir.path() / "checkpoints/last.pt");
  write(dir.path() / "checkpoints/mine.pt", whole.substr(0, whole.size() / 2));
  RunFolder folder(dir.path());
  folder.begin(kNames);
  save(folder, "last.pt", 1);
  const auto replaced = dir.path() / ("replaced-" + identity.run);
  CHECK(files_in(replaced / "checkpoints") ==
        std::set<std::string>{"mine.pt", (shards.filename() / "rank-0").string()});
}

TEST_CASE("shards whose checkpoint is gone are set aside with their run", "[run_folder]") {
  const TempDir dir;
  const auto identity = make_run(dir.path());
  const auto shards = RunFolder(dir.path()).begin_shards(dir.path() / "checkpoints/last.pt", 10).front();
  write(shards / "rank-0", "weights");
  fs::remove(dir.path() / "checkpoints/last.pt");
  RunFolder folder(dir.path());
  folder.begin(kNames);
  CHECK(folder.identity().run != identity.run);
  CHECK(fs::exists(dir.path() / ("replaced-" + identity.run) / "checkpoints" / shards.filename() / "rank-0"));
}

TEST_CASE("of folders of shards only what the run has listed and its ranks have written is removed",
          "[run_folder]") {
  const TempDir dir;
  make_run(dir.path());
  const auto checkpoints = dir.path() / "checkpoints";
  const auto own = RunFolder(dir.path()).begin_shards(checkpoints / "last.pt", 10).front().filename();
  const std::vector<std::string> others = {"backup-" + own.string() + "/rank-0", own.string() + "/notes.txt",
                                           own.string() + "/rank-0.txt"};
  for (const auto& name : others) write(checkpoints / name, "mine");
  for (const char* name : {"rank-0", "rank-12", ".rank-1.tmp.345"}) write(checkpoints / own / name, "shards");
  RunFolder folder(dir.path());  // of the next process: the run was killed as soon as it had begun them
  SECTION("if a checkpoint cannot be read, a copy that somebody makes just now too, it may need them") {
    write(checkpoints / GENERATE("last.pt", "copy.pt"), "damaged");
    folder.remove_unused_shards();
    CHECK(fs::exists(checkpoints / own / "rank-0"));
  }
  SECTION("what is no checkpoint does not keep them") {
    write(checkpoints / "mine.txt", "mine");
    folder.remove_unused_shards();
    for (const auto& name : others) CHECK(read_file(checkpoints / name) == "mine");
    CHECK(files_in(checkpoints / own) == std::set<std::string>{"notes.txt", "rank-0.txt"});
  }
  SECTION("and the folder, if nothing else is in it") {
    for (const char* name : {"notes.txt", "rank-0.txt"}) fs::remove(checkpoints / own / name);
    folder.remove_unused_shards();
    CHECK_FALSE(fs::exists(checkpoints / own));
    const auto next = folder.begin_shards(checkpoints / "last.pt", 20);  // others may have their part of it
    CHECK(next.back() == checkpoints / own);
    CHECK(folder.branch_of(checkpoints / own) == 0);
    CHECK(RunFolder(dir.path()).branch_of(next.front()) == 1);
  }
}

TEST_CASE("another run's state in the place of one's own is kept", "[run_folder]") {
  const TempDir dir;
  const auto identity = make_run(dir.path());
  save_checkpoint(dir.path() / "checkpoints/epoch=1.pt", state_of(identity, 5));
  const auto last = dir.path() / "checkpoints/last.pt";
  if (GENERATE(true, false))
    save_checkpoint(last, state_of({"00000000", 1}, 1000));
  else
    serialize::write_pt(last, make_dict());
  const auto others = read_file(last);
  CHECK(find_resume(dir.path()).state.step == 5);
  RunFolder folder(dir.path());
  folder.resume(identity, /*is_newest=*/true, kNames);
  CHECK(folder.is_foreign(last));
  save(folder, "last.pt", 6);
  CHECK_FALSE(folder.is_foreign(last));
  CHECK(read_file(dir.path() / "checkpoints/last-earlier.pt") == others);
}

TEST_CASE("a run that goes back to an earlier branch has that branch's metrics", "[run_folder]") {
  const TempDir dir;
  const auto first = make_run(dir.path());
  RunFolder second(dir.path());
  second.resume(first, /*is_newest=*/false, kNames);
  second.claim(dir.path() / "metrics.csv");
  write(dir.path() / "metrics.csv", "of branch 2");
  RunFolder third(dir.path());  // the second was killed before its first checkpoint
  third.resume(first, /*is_newest=*/true, kNames);
  CHECK(third.identity().branch == 3);
  CHECK(read_file(dir.path() / "metrics.csv") == "step\n");
  CHECK(read_file(dir.path() / "metrics-branch=2.csv") == "of branch 2");
}

TEST_CASE("a run that goes back lists the metrics before it replaces them", "[run_folder]") {
  const TempDir dir;
  const auto first = make_run(dir.path());
  const auto metrics = dir.path() / "metrics.csv";
  RunFolder second(dir.path());
  second.resume(first, /*is_newest=*/false, kNames);
  second.claim(metrics);
  write(metrics, "of branch 2");
  save(second, "last.pt", 20);
  fs::remove(dir.path() / "metrics-branch=1.csv");
  fs::create_directory(dir.path() / "metrics-branch=1.csv");  // so that it goes no further
  RunFolder third(dir.path());
  CHECK_THROWS_AS(third.resume(first, /*is_newest=*/false, kNames), IoError);
  CHECK(read_file(metrics) == "of branch 2");
  CHECK(RunFolder(dir.path()).branch_of(metrics) == 3);  // else branch 2 would go on with another's rows
}

TEST_CASE("an older version's metrics are kept when its run goes back", "[run_folder]") {
  const TempDir dir;
  fs::create_directories(dir.path() / "checkpoints");
  write(dir.path() / "metrics.csv", "step\n1\n2\n");
  RunFolder folder(dir.path());
  folder.resume({}, /*is_newest=*/false, kNames);
  CHECK(read_file(dir.path() / "metrics-earlier.csv") == "step\n1\n2\n");
}

TEST_CASE("an edited list leads to no file outside of the folder", "[run_folder]") {
  const TempDir dir;
  write(dir.path() / "run.json",
        GENERATE(R"({"run": "a", "files": {"../victim": 1}})", R"({"run": "a", "files": {"/etc/victim": 1}})",
                 R"({"run": "a", "files": {}, "replaced": ["../victim"]})",
                 R"({"run": "a", "files": {}, "replaced": ["replaced-/../../victim"]})"));
  CHECK_THROWS_WITH(RunFolder(dir.path()), ContainsSubstring("run.json: is not the list of a run's files"));
}

TEST_CASE("an empty file that a full disk has left is in nobody's way", "[run_folder]") {
  const TempDir dir;
  write(dir.path() / "summary.json", "");
  CHECK(RunFolder(dir.path()).in_the_way({"summary.json"}, /*goes_on=*/true).empty());
  write(dir.path() / "summary.json", "{}");
  CHECK(RunFolder(dir.path()).in_the_way({"summary.json"}, /*goes_on=*/true) == dir.path() / "summary.json");
}

TEST_CASE("a run is set aside across disks, or not at all", "[run_folder]") {
  const TempDir dir;
  const auto identity = make_run(dir.path());
  fs::create_directory(dir.path() / "figures");
  on_a_small_disk(dir.path() / "figures", "size=1m", [&](const fs::path& disk) {
    RunFolder folder(dir.path());
    folder.claim(disk / "loss.png");
    write(disk / "loss.png", "picture");
    folder.begin(kNames);
    const auto moved = dir.path() / ("replaced-" + identity.run) / "figures/loss.png";
    ensure(read_file(moved) == "picture" && !fs::exists(disk / "loss.png"), "it has moved");
  });
}

TEST_CASE("a run is set aside on a full disk, or not at all", "[run_folder]") {
  const TempDir dir;
  const int room = GENERATE(0, 1, 2);  // for so many files and folders
  on_a_small_disk(dir.path(), "size=1m,nr_inodes=40", [&](const fs::path& disk) {
    const auto run = disk / "run";
    make_run(run);
    fs::copy_file(run / "checkpoints/last.pt", run / "checkpoints/mine.pt");
    const auto before = files_in(run);
    int files = 0;
    while (std::ofstream(disk / std::to_string(files)).is_open()) ++files;
    for (int i = 0; i < room; ++i) fs::remove(disk / std::to_string(i));
    RunFolder folder(run);
    try {
      folder.begin(kNames);
      ensure(false, "it has begun without its list");
    } catch (const IoError& error) {
      ensure(error.error_number == ENOSPC, error.what());
    }
    ensure(room == 2 || (files_in(run) == before && find_resume(run).state.step == 10), "it is whole");
  });
}

TEST_CASE("a run whose list is gone is still itself", "[run_folder]") {
  const TempDir dir;
  const auto identity = make_run(dir.path());
  fs::remove(dir.path() / "run.json");
  RunFolder folder(dir.path());
  const bool is_newest = GENERATE(true, false);
  folder.resume(identity, is_newest, kNames);
  CHECK(folder.identity() == RunIdentity{identity.run, is_newest ? 1 : 2});
  CHECK(find_resume(dir.path()).state.step == 10);  // and if it is killed now
}

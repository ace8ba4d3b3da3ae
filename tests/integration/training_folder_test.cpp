// A run's folder: who may resume in it, and what is never deleted.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <ddprun/common/text.h>
#include "tests/integration/node_job.h"
#include "tests/integration/training_job.h"

namespace ddprun::test {
namespace {

using Files = std::map<std::string, std::string>;

Files files_in(const fs::path& folder) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files[entry.path().lexically_relative(folder).string()] = read_file(entry.path());
  return files;
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

/// A training of a second. ranks: 0 for the worker alone
Command linear(const fs::path& out, const std::vector<std::string>& flags, int ranks = 0) {
  auto command = training("linear", ranks, out, {"--limit-train=64", "--batch-size=8", "--save-top-k=-1"});
  command.argv.insert(command.argv.end(), flags.begin(), flags.end());
  return command;
}

struct Ended {
  ExitStatus status;
  std::string out, err;
};

Ended end_of(const Command& command) {
  Child child(command);
  const auto status = child.wait(kTraining);
  return {status, child.out(), child.err()};
}

void require_success(const Command& command) {
  const auto ended = end_of(command);
  CAPTURE(ended.out, ended.err);
  REQUIRE(ended.status == ExitStatus::exited(0));
}

void damage(const fs::path& file) {
  auto bytes = read_file(file);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
}

/// As an --overwrite that was killed before it moved anything but the list. returns  the new folder
fs::path half_replace(const fs::path& out, const std::vector<std::string>& replaced = {}) {
  auto list = nlohmann::json::parse(read_file(out / "run.json"));
  const auto aside = out / ("replaced-" + list["run"].get<std::string>());
  list["set_aside"] = true;
  if (!replaced.empty()) list["replaced"] = replaced;
  write(out / ".run.json.moving", aside.filename().string());
  fs::remove(out / "run.json");
  write(aside / "run.json", list.dump());
  fs::rename(out / "checkpoints", aside / "checkpoints");
  return aside;
}

/// As one that was killed when it had moved everything.
fs::path replace_without_list(const fs::path& out) {
  const auto aside = half_replace(out);
  for (const auto& entry : fs::directory_iterator(out))
    if (entry.path() != aside && entry.path().filename() != ".run.json.moving")
      fs::rename(entry.path(), aside / entry.path().filename());
  return aside;
}

/// Of two classes.
fs::path write_table(const fs::path& path, int rows) {
  std::string text;
  for (int i = 0; i < rows; ++i) text += std::to_string(i % 7) + "," + std::to_string(i % 2) + "\n";
  write(path, text);
  return path;
}

/// With something injected into system calls that concern the path, as strace's --inject has it.
Command injected(const std::string& what, const fs::path& path, Command command) {
  const std::vector<std::string> strace = {"strace", "-f", "-qq",           "-o", "/dev/null", "-P",
                                           path,     "-e", "inject=" + what};
  command.argv.insert(command.argv.begin(), strace.begin(), strace.end());
  return command;
}

/// Killed as it renames the file.
Command killed_at(const fs::path& file, Command command) {
  return injected("rename,renameat,renameat2:signal=KILL", file, std::move(command));
}

/// Takes five seconds to open the data.
Command slow_to_load(const fs::path& data, Command command) {
  return injected("openat:delay_enter=5000000", data, std::move(command));
}

/// In a tensor's data, which only a whole reading finds.
void damage_tensor(const fs::path& file) {
  auto bytes = read_file(file);
  const auto name = bytes.find("/data/0");
  REQUIRE(name != std::string::npos);
  const auto header = bytes.rfind("PK\x03\x04", name);  // of the zip archive's record
  const auto size_at = [&](std::size_t at) {
    return static_cast<unsigned char>(bytes[header + at]) +
           256 * static_cast<unsigned char>(bytes[header + at + 1]);
  };
  bytes[header + 30 + size_at(26) + size_at(28)] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
}

Command worker(const std::vector<std::string>& words) {
  Command command;
  command.argv = words;
  command.argv.insert(command.argv.begin(), worker_program());
  return command;
}

}  // namespace

TEST_CASE("a run that cannot be read is refused by --resume auto, and nothing is changed",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  const bool sharded = GENERATE(false, true);
  const std::vector<std::string> flags =
      sharded ? std::vector<std::string>{"--fsdp"} : std::vector<std::string>{};
  const int ranks = sharded ? 2 : 0;
  require_success(linear(out, {flags.begin(), flags.end()}, ranks));
  const auto last = out / "checkpoints/last.pt";
  for (const auto& entry : fs::directory_iterator(out / "checkpoints"))
    if (entry.is_regular_file() && entry.path() != last) fs::remove(entry.path());
  std::string reason;
  if (sharded) {
    for (const auto& entry : fs::directory_iterator(out / "checkpoints"))
      if (entry.is_directory()) fs::remove(entry.path() / "rank-1");
    reason = "rank-1: cannot open: No such file";
  } else if (GENERATE(true, false)) {
    damage(last);
    reason = "last.pt: damaged";
  } else {
    fs::remove_all(out / "checkpoints");
    reason = ".pt: is gone, though run.json lists it";
  }
  CAPTURE(reason);
  const auto before = files_in(out);
  auto again = flags;
  again.insert(again.end(), {"--resume=auto", "--epochs=9"});
  const auto ended = end_of(linear(out, again, ranks));
  CHECK(ended.status == ExitStatus::exited(1));
  CHECK_THAT(ended.err, ContainsSubstring(reason) && ContainsSubstring("nothing was changed"));
  CHECK(files_in(out) == before);
}

TEST_CASE("a disk that does not give a checkpoint back is no reason to start from scratch",
          "[training][run_folder]") {
  const std::string error = GENERATE("EIO", "EACCES");
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1", "--save-top-k=0"}));
  CHECK(read_file(out / "config.toml")
            .starts_with("# run " +
                         nlohmann::json::parse(read_file(out / "run.json"))["run"].get<std::string>() +
                         ", branch 1\n"));
  const auto before = files_in(out);
  auto again = linear(out, {"--resume=auto", "--epochs=9"});
  const std::vector<std::string> strace = {"strace",
                                           "-f",
                                           "-qq",
                                           "-o",
                                           "/dev/null",
                                           "-P",
                                           out / "checkpoints/last.pt",
                                           "-e",
                                           "inject=openat:error=" + error};
  again.argv.insert(again.argv.begin(), strace.begin(), strace.end());
  const auto ended = end_of(again);
  CHECK(ended.status == ExitStatus::exited(1));
  CHECK_THAT(ended.err,
             ContainsSubstring("last.pt: cannot open: ") && ContainsSubstring("nothing was changed"));
  CHECK(files_in(out) == before);
}

TEST_CASE("a new run leaves alone what it did not write", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path();
  const Files mine = {{"best/notes.txt", "mine"},      {"figures/loss.svg", "mine"},
                      {"figures/holiday.png", "mine"}, {"report.html", "mine"},
                      {"evaluation.json", "mine"},     {"events.out.tfevents.1.other", "mine"}};
  for (const auto& [name, text] : mine) write(out / name, text);
  const auto ended = end_of(linear(out, {}));
  CAPTURE(ended.err);
  CHECK(ended.status == ExitStatus::exited(0));
  CHECK_THAT(ended.err, ContainsSubstring("no report: ") && ContainsSubstring("was not written by this run"));
  const auto after = files_in(out);
  for (const auto& [name, text] : mine) {
    CAPTURE(name);
    CHECK(after.at(name) == text);
  }
  CHECK(after.contains("figures/lr.svg"));
  SECTION("a configuration, or a profile, of another program is not replaced") {
    const std::string name = GENERATE("config.toml", "profile/operators.txt", "profile/trace.json");
    const auto other = dir.path() / "other";
    write(other / name, "mine");
    const auto refused = end_of(linear(other, {"--profile"}));
    CHECK(refused.status == ExitStatus::exited(2));
    CHECK_THAT(refused.err, ContainsSubstring("holds a file that a run would replace (" + name + ")"));
    CHECK(files_in(other) == Files{{name, "mine"}});
    CHECK_FALSE(fs::exists(other / "checkpoints"));
  }
  SECTION("nor a profile by a run that goes on") {
    require_success(linear(out, {"--epochs=1", "--overwrite"}));
    write(out / "profile/trace.json", "mine");
    const auto refused = end_of(linear(out, {"--epochs=2", "--resume=auto", "--profile"}));
    CHECK(refused.status == ExitStatus::exited(1));
    CHECK_THAT(refused.err, ContainsSubstring("trace.json: was not written by this run"));
    CHECK(read_file(out / "profile/trace.json") == "mine");
  }
}

TEST_CASE("a run that is overwritten is set aside until the new one has a checkpoint",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=2"}));
  const auto before = files_in(out);
  const auto refused = end_of(linear(out, {}));
  CHECK(refused.status == ExitStatus::exited(2));
  CHECK(files_in(out) == before);
  // It ends before its first checkpoint.
  const auto failed = end_of(linear(out, {"--overwrite", "--epochs=1", "--log-indices=/nowhere/x"}));
  CHECK(failed.status != ExitStatus::exited(0));
  fs::path replaced;
  for (const auto& entry : fs::directory_iterator(out))
    if (entry.path().filename().string().starts_with("replaced-")) replaced = entry.path();
  REQUIRE(!replaced.empty());
  auto set_aside = files_in(replaced);
  auto list = nlohmann::json::parse(set_aside.at("run.json"));
  CHECK(list.erase("set_aside") == 1);
  set_aside["run.json"] = before.at("run.json");
  CHECK(set_aside == before);
  CHECK(list == nlohmann::json::parse(before.at("run.json")));
  require_success(linear(out, {"--overwrite", "--epochs=1"}));
  CHECK_FALSE(fs::exists(replaced));
}

TEST_CASE("a run that keeps no last.pt has ended all the same", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  auto flags = GENERATE(std::vector<std::string>{"--lr=3", "--epochs=50", "--patience=2", "--save-top-k=1"},
                        std::vector<std::string>{"--epochs=100000", "--max-time=0.5", "--save-top-k=1"},
                        std::vector<std::string>{"--epochs=2", "--save-top-k=0"});
  const int ranks = flags.size() == 2 ? 2 : 0;
  flags.insert(flags.end(), {"--val-split=0.25", "--no-save-last", "--no-report", "--resume=auto"});
  require_success(linear(out, flags, ranks));
  const auto before = files_in(out);
  const auto steps = std::to_string(read_summary(out)["steps"].get<std::int64_t>());
  const auto again = end_of(linear(out, flags, ranks));
  CAPTURE(again.out, again.err);
  CHECK(again.status == ExitStatus::exited(0));
  CHECK_THAT(again.err, ContainsSubstring("has ended, at step " + steps + ": "));
  CHECK(files_in(out) == before);
  flags.emplace_back("--max-steps=5");  // other limits
  CHECK_THAT(end_of(linear(out, flags)).err, !ContainsSubstring("has ended"));
}

TEST_CASE("a finished run without checkpoints is not replaced by --resume auto", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  const auto toy = [&](const std::string& epochs, const std::vector<std::string>& more) {
    auto command = training("toy", 0, out, {epochs, "1", "--no-report"});
    command.argv.insert(command.argv.end(), more.begin(), more.end());
    require_success(command);
  };
  toy("3", {"--no-save-last"});
  const auto weights = read_file(out / "checkpoint.pt");
  toy("1", {"--resume=auto", "--lr=0.005"});
  CHECK(read_file(out / "replaced-earlier/checkpoint.pt") == weights);
  CHECK(fs::exists(out / "checkpoints/last.pt"));
}

TEST_CASE("what somebody put beside a sharded run's checkpoints stays", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", checkpoints = out / "checkpoints";
  require_success(linear(out, {"--epochs=1", "--fsdp", "--save-top-k=0"}, 2));
  fs::path shards;
  for (const auto& entry : fs::directory_iterator(checkpoints))
    if (entry.is_directory()) shards = entry.path();
  const auto backup = checkpoints / ("backup-" + shards.filename().string());
  fs::copy(shards, backup);
  write(shards / "notes.txt", "mine");
  const auto part = read_file(shards / "rank-0");
  fs::copy_file(checkpoints / "last.pt", checkpoints / "good.pt");
  SECTION("as the run goes on") {
    require_success(linear(out, {"--epochs=2", "--fsdp", "--save-top-k=0", "--resume=auto"}, 2));
    CHECK(read_file(shards / "rank-0") == part);  // of the copy of the index
    fs::remove(checkpoints / "good.pt");
    require_success(linear(out, {"--epochs=3", "--fsdp", "--save-top-k=0", "--resume=auto"}, 2));
    CHECK(files_in(shards) == Files{{"notes.txt", "mine"}});
  }
  SECTION("as the run is overwritten") {
    require_success(linear(out, {"--epochs=1", "--fsdp", "--save-top-k=0", "--overwrite"}, 2));
    fs::path replaced;
    for (const auto& entry : fs::directory_iterator(out))
      if (entry.path().filename().string().starts_with("replaced-")) replaced = entry.path();
    REQUIRE(!replaced.empty());
    CHECK(fs::exists(replaced / "checkpoints/good.pt"));
    CHECK(read_file(replaced / "checkpoints" / shards.filename() / "rank-0") == part);
  }
  CHECK(read_file(backup / "rank-0") == part);
}

TEST_CASE("a checkpoint's name that run.json cannot hold is refused", "[training][run_folder]") {
  const TempDir dir;
  const auto ended = end_of(linear(dir.path() / "run", {"--checkpoint-name=\xff-{epoch}"}));
  CHECK(ended.status == ExitStatus::exited(2));
  CHECK_THAT(ended.err, ContainsSubstring("--checkpoint-name: expected a name in UTF-8"));
  const auto too_long = end_of(linear(dir.path() / "run", {"--checkpoint-name=" + std::string(245, 'x')}));
  CHECK(too_long.status == ExitStatus::exited(2));
  CHECK_THAT(too_long.err, ContainsSubstring("--checkpoint-name") && ContainsSubstring("at most 200 bytes"));
}

TEST_CASE("a resume is not advised where it was asked for", "[training][run_folder]") {
  const TempDir dir;
  write(dir.path() / "run/metrics.csv", "mine");
  const auto ended = end_of(linear(dir.path() / "run", {"--resume=auto"}));
  CHECK(ended.status == ExitStatus::exited(2));
  CHECK_THAT(ended.err,
             ContainsSubstring(
                 "holds a file that a run would replace (metrics.csv); use another folder or --overwrite"));
}

TEST_CASE("a resume from an earlier state begins a branch, and --resume auto stays in it",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=4"}));
  const auto last = read_file(out / "checkpoints/last.pt");
  require_success(linear(
      out, {"--epochs=2", "--resume=" + (out / "checkpoints/epoch=0-step=8.pt").string(), "--lr=0.5"}));
  CHECK(read_file(out / "checkpoints/last-branch=1.pt") == last);
  CHECK(values_of(out, "step").back() == "16");
  const auto ended = end_of(linear(out, {"--epochs=3", "--resume=auto"}));
  CHECK_THAT(ended.out, ContainsSubstring("at step 16"));
  CHECK_THAT(read_file(out / "metrics-branch=1.csv"), ContainsSubstring("\n3,32,"));
}

TEST_CASE("a lost rank does not lead back to the branch that a resume has left", "[training][run_folder]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto out = dir.path() / "run";
  const auto flags = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = {
        "--data=fashion-mnist", "--limit-train=512", "--limit-test=64", "--batch-size=16",
        "--val-split=0.1",      "--save-top-k=-1",   "--fsdp",          "--memory-checkpoint-every=2",
        "--log-interval=1",     "--no-report",       "--no-progress"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto events = dir.path() / "events";
  const auto command = [&](const std::vector<std::string>& more) {
    auto job = mnist(2, out, flags(more));
    job.argv.insert(job.argv.begin() + 1,
                    {"--recover=rank", "--max-restarts=3", "--events-json=" + events.string()});
    return job;
  };
  require_success(command({"--epochs=3"}));
  fs::path first;
  for (const auto& entry : fs::directory_iterator(out / "checkpoints"))
    if (entry.path().filename().string().starts_with("epoch=0") && entry.path().extension() == ".pt")
      first = entry.path();
  REQUIRE(!first.empty());
  Child child(command({"--epochs=2", "--resume=" + first.string()}));
  REQUIRE(child.wait_for_output("Loss", 4));
  for (const int rank : GENERATE(std::vector{1}, std::vector{0, 1})) kill_rank(events, rank);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CAPTURE(child.out(), child.err());
  CHECK(count_of("resumed from ", child.out()) == count_of("resumed from " + first.string(), child.out()));
  CHECK(values_of(out, "epoch").back() == "1");
}

TEST_CASE("an --overwrite that was killed while it moved the earlier run is undone",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  auto list = nlohmann::json::parse(read_file(out / "run.json"));
  const auto aside = out / ("replaced-" + list["run"].get<std::string>());
  list["set_aside"] = true;
  fs::create_directory(aside);
  write(out / ".run.json.moving", aside.filename().string());
  fs::remove(out / "run.json");
  write(aside / "run.json", list.dump());
  const int moved = GENERATE(0, 1, 2, 3);  // 3: and a new run's list is lost
  if (moved > 0) fs::rename(out / "checkpoints", aside / "checkpoints");
  if (moved > 0) fs::create_directory(out / "checkpoints");
  if (moved > 1)
    for (const auto& [name, branch] : list["files"].items())
      if (name.find('/') == std::string::npos && fs::exists(out / name)) fs::rename(out / name, aside / name);
  if (moved > 2) write(out / "metrics.csv", "step,epoch\n");
  if (moved == 1)  // which was interrupted on its way to another disk
    write(aside / "metrics.csv", read_file(out / "metrics.csv").substr(0, 9));
  const auto second = end_of(linear(out, {"--epochs=2", "--resume=auto"}));
  CAPTURE(second.err);
  CHECK(fs::exists(aside) == (moved > 2));
  if (moved > 2) {
    CHECK(second.status == ExitStatus::exited(1));
    CHECK_THAT(second.err, ContainsSubstring((out / "metrics.csv").string() + ": is there again: move it") &&
                               ContainsSubstring(" was moved to " + aside.string()));
    CHECK(fs::exists(out / ".run.json.moving"));
    return;
  }
  REQUIRE(second.status == ExitStatus::exited(0));
  CHECK_THAT(second.out + second.err, ContainsSubstring("is back in its place"));
  CHECK(values_of(out, "train_loss_epoch").size() == 2);
  CHECK(nlohmann::json::parse(read_file(out / "run.json"))["run"] == list["run"]);
}

TEST_CASE("a run that is resumed where a killed --overwrite has moved it stays there",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto aside = replace_without_list(out);
  const int linked = GENERATE(0, 1, 2);
  const auto path = linked == 1 ? dir.path() / "link" : linked == 2 ? aside / "" : aside;
  if (linked == 1) fs::create_directory_symlink(aside, path);
  if (linked == 2) {  // its user has put it on another disk
    fs::rename(aside, dir.path() / "elsewhere");
    fs::create_directory_symlink(dir.path() / "elsewhere", aside);
  }
  require_success(linear(path, {"--epochs=2", "--resume=auto"}));
  require_success(linear(out, {"--epochs=1", "--overwrite"}));
  CHECK(values_of(aside, "step").back() == "16");
  CHECK(fs::exists(aside / "checkpoints/last.pt"));
}

TEST_CASE("a command that is refused where a killed --overwrite has moved a run changes nothing",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto aside = replace_without_list(out);
  CHECK(end_of(linear(aside, {"--resume=auto", "--batch-size=4"})).status == ExitStatus::exited(2));
  CHECK(end_of(linear(aside, {})).status == ExitStatus::exited(2));
  require_success(linear(out, {"--resume=auto", "--epochs=2"}));
  CHECK(values_of(out, "step").back() == "16");
}

TEST_CASE("a run of which a killed --overwrite has moved a part is not used there",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto killed_before = GENERATE("checkpoints", "metrics.csv");
  end_of(killed_at(out / killed_before, linear(out, {"--overwrite"})));
  const auto aside = out / read_file(out / ".run.json.moving");
  CHECK(fs::exists(out / "metrics.csv"));
  const auto path = GENERATE(false, true) ? dir.path() / "link" : aside;
  if (path != aside) fs::create_directory_symlink(aside, path);
  const auto refused = end_of(GENERATE(true, false) ? linear(path, {"--epochs=2", "--resume=auto"})
                                                    : worker({"linear", "--eval", path}));
  CHECK(refused.status == ExitStatus::exited(1));
  CHECK_THAT(refused.err, ContainsSubstring("was only a part of the run in " + out.string() + ", where"));
  require_success(linear(out, {"--epochs=2", "--resume=auto"}));
  CHECK(values_of(out, "step").back() == "16");
  CHECK_FALSE(fs::exists(aside));
}

TEST_CASE("a run that ends within its first epoch removes what it has replaced", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  require_success(linear(out, {"--overwrite", "--max-steps=3", "--val-every-steps=5", "--val-split=0.25"}));
  for (const auto& entry : fs::directory_iterator(out))
    CHECK_FALSE(entry.path().filename().string().starts_with("replaced-"));
}

TEST_CASE("a run that a killed --overwrite was moving is resumed with its own settings",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", new_folder = dir.path() / "new";
  require_success(linear(out, {"--epochs=1", "--lr=0.0625", "--seed=3"}));
  half_replace(out);
  const std::string from = GENERATE("auto", "", "checkpoints/last.pt");
  const auto into = from == "auto" || (from.empty() && GENERATE(true, false)) ? out : new_folder;
  require_success(
      linear(into, {"--epochs=2", "--resume=" + (from == "auto" ? from : (out / from).string())}));
  CHECK_THAT(read_file(into / "config.toml"), ContainsSubstring("lr = 0.0625\n"));
  CHECK(values_of(into, "step").back() == "16");
}

TEST_CASE("of several runs that were set aside, the one whose --overwrite was killed moves back",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto earlier = half_replace(out);
  fs::rename(out / "metrics.csv", dir.path() / "rest");
  for (const auto& path : {"summary.json", "config.toml", "environment.json", "metrics.jsonl"})
    fs::remove(out / path);
  fs::create_directories(dir.path() / "aside");
  fs::rename(earlier, dir.path() / "aside" / earlier.filename());
  require_success(linear(out, {"--epochs=1", "--overwrite"}));
  const auto run = nlohmann::json::parse(read_file(out / "run.json"))["run"];
  fs::rename(dir.path() / "aside" / earlier.filename(), earlier);
  SECTION("which lists the other one") {
    half_replace(out, {earlier.filename().string()});
    require_success(linear(out, {"--epochs=2", "--resume=auto"}));
    CHECK(nlohmann::json::parse(read_file(out / "run.json"))["run"] == run);
    CHECK_FALSE(fs::exists(earlier));  // it has the next checkpoint
  }
  SECTION("which was being moved") {
    half_replace(out);
    require_success(linear(out, {"--epochs=2", "--resume=auto"}));
    CHECK(nlohmann::json::parse(read_file(out / "run.json"))["run"] == run);
    CHECK(fs::exists(earlier / "checkpoints/last.pt"));
  }
  SECTION("and if that is not known, all are named") {
    const auto aside = half_replace(out);
    fs::remove(out / ".run.json.moving");
    const auto refused = end_of(linear(out, {"--epochs=2", "--resume=auto"}));
    CHECK(refused.status == ExitStatus::exited(2));
    CHECK_THAT(refused.err, ContainsSubstring("; earlier runs, which were set aside, are in ") &&
                                ContainsSubstring(earlier.filename().string()) &&
                                ContainsSubstring(aside.filename().string()));
  }
}

TEST_CASE("a run that was set aside stays where its user has moved it", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", other = dir.path() / "other";
  require_success(linear(out, {"--epochs=1"}));
  const auto aside = half_replace(out), moved = other / aside.filename();
  fs::create_directory(other);
  fs::rename(aside, moved);
  const auto before = files_in(moved);
  require_success(linear(other, {"--epochs=1", "--overwrite"}));
  CHECK(files_in(moved) == before);
}

TEST_CASE("a run that a killed --overwrite was moving is there for every command that reads it",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto aside = half_replace(out);
  fs::rename(out / "config.toml", aside / "config.toml");
  SECTION("--eval") { require_success(worker({"linear", "--eval", out})); }
  SECTION("runs") { require_success(worker({"runs", out})); }
  SECTION("runs in a folder") { require_success(worker({"runs", dir.path()})); }
  SECTION("prune") { require_success(worker({"prune", out})); }
  SECTION("--eval FILE") { require_success(worker({"linear", "--eval", out / "checkpoints/last.pt"})); }
  SECTION("export FILE") {
    require_success(worker({"export", out / "checkpoints/last.pt", dir.path() / "model.pt"}));
  }
  SECTION("a job that begins from it") {
    const int ranks = GENERATE(0, 2);
    require_success(linear(dir.path() / "new", {"--epochs=1", "--init-weights=" + out.string()}, ranks));
  }
  SECTION("a job that is refused because it would overwrite what it begins from") {
    const auto file = GENERATE("checkpoints/last.pt", "metrics.csv");
    const auto refused = end_of(linear(out, {"--overwrite", "--init-weights=" + (out / file).string()}));
    CHECK(refused.status == ExitStatus::exited(2));
  }
  SECTION("--config") {
    require_success(linear(dir.path() / "new", {"--config=" + (out / "config.toml").string()}));
  }
  SECTION("a file that names the task") {
    require_success(worker({"--config", out / "config.toml", "--overwrite"}));
  }
  CHECK_FALSE(fs::exists(aside));
}

TEST_CASE("a damaged list of a run that a killed --overwrite was moving is no reason to begin again",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto aside = half_replace(out);
  write(aside / "run.json", GENERATE("[]", ""));
  const auto refused = end_of(linear(out, {"--epochs=2", "--resume=auto"}));
  CHECK(refused.status == ExitStatus::exited(1));
  CHECK_THAT(refused.err, ContainsSubstring("run.json: is not the list of a run's files"));
  CHECK(fs::exists(out / "checkpoints/last.pt"));
}

TEST_CASE("a folder replaced-... that is not a run's keeps no training from its run",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  if (GENERATE(true, false)) half_replace(out);
  write(out / "replaced-mine/run.json", GENERATE("[]", ""));
  require_success(linear(out, {"--epochs=2", "--resume=auto"}));
  CHECK(values_of(out, "step").back() == "16");
}

TEST_CASE("a run's checkpoints are back on the disk before its list is", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  half_replace(out);
  fs::create_directory(out / "checkpoints");
  auto again = linear(out, {"--epochs=2", "--resume=auto"});
  const std::vector<std::string> strace = {
      "strace", "-f", "-qq", "-y", "-o", dir.path() / "log", "-e", "trace=fsync,rename,renameat,renameat2"};
  again.argv.insert(again.argv.begin(), strace.begin(), strace.end());
  require_success(again);
  const auto log = read_file(dir.path() / "log");
  const auto synced = log.find("run/checkpoints>)"), listed = log.find("/run.json\"");
  CAPTURE(log);
  CHECK((synced != std::string::npos && listed != std::string::npos && synced < listed));
}

TEST_CASE("a restarted job goes on in its own run, though it was to overwrite another",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto events = dir.path() / "events";
  auto job = linear(out, {"--overwrite", "--epochs=400", "--batch-size=1", "--no-report"}, 2);
  job.argv.insert(job.argv.begin() + 1, {"--max-restarts=1", "--events-json=" + events.string()});
  Child child(job);
  REQUIRE(wait_until([&] { return fs::exists(out / "checkpoints/epoch=2-step=96.pt"); }));
  kill_rank(events, 1);
  REQUIRE(child.wait_for_output("resumed from "));
  child.send_signal(SIGTERM);
  child.wait(kTraining);
  CHECK(count_of("the earlier run's files are in", child.err()) == 1);
}

TEST_CASE("an older list beside newer checkpoints does not lead back", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto old = read_file(out / "run.json");
  for (const char* epochs : {"--epochs=2", "--epochs=3", "--epochs=3"})
    require_success(linear(out, {epochs, "--resume=" + (out / "checkpoints/epoch=0-step=8.pt").string()}));
  write(out / "run.json", old);
  require_success(linear(out, {"--epochs=4", "--resume=auto"}));
  CHECK_THAT(end_of(linear(out, {"--epochs=5", "--resume=auto"})).out, ContainsSubstring("at step 32"));
}

TEST_CASE("a copy of a run that has gone on is another branch", "[training][run_folder]") {
  const TempDir dir;
  const auto one = dir.path() / "one", other = dir.path() / "other";
  require_success(linear(one, {"--epochs=1"}));
  fs::copy(one, other, fs::copy_options::recursive);
  require_success(linear(one, {"--epochs=2", "--resume=auto"}));
  require_success(linear(other, {"--epochs=2", "--resume=auto", "--lr=0.5"}));
  const auto trained = read_file(other / "checkpoints/last.pt");
  require_success(linear(other, {"--epochs=3", "--resume=" + (one / "checkpoints/last.pt").string()}));
  CHECK(read_file(other / "checkpoints/last-branch=1.pt") == trained);
}

TEST_CASE("a checkpoint of a copy of the run does not bring the best one that the copy has here",
          "[training][run_folder]") {
  const TempDir dir;
  const auto one = dir.path() / "one", other = dir.path() / "other";
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--val-split=0.25", "--save-top-k=1"});
    return more;
  };
  require_success(linear(one, with({"--epochs=1", "--lr=0.01"})));
  fs::copy(one, other, fs::copy_options::recursive);
  require_success(linear(one, with({"--epochs=3", "--resume=auto"})));
  require_success(linear(other, with({"--epochs=3", "--resume=auto", "--lr=0.001"})));
  const auto here = read_summary(other)["best_checkpoint"].get<std::string>();
  REQUIRE(fs::path(here).filename() ==
          fs::path(read_summary(one)["best_checkpoint"].get<std::string>()).filename());
  const auto last = (one / "checkpoints/last.pt").string();
  const auto ended = end_of(linear(other, with({"--epochs=4", "--lr=20", "--resume=" + last})));
  REQUIRE(ended.status == ExitStatus::exited(0));
  CHECK_THAT(ended.err, ContainsSubstring(last + ": is not in " + (other / "checkpoints").string()));
  CHECK(read_summary(other)["best_checkpoint"] != here);
}

TEST_CASE("what an --overwrite replaced that was interrupted stays after --resume auto",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto last = read_file(out / "checkpoints/last.pt");
  CHECK(end_of(linear(out, {"--overwrite", "--log-indices=/nowhere/x"})).status != ExitStatus::exited(0));
  CHECK_THAT(end_of(worker({"export", out.string(), (dir.path() / "model.pt").string()})).err,
             ContainsSubstring("has no checkpoint; earlier runs, which were set aside, are in"));
  require_success(linear(out, {"--epochs=1", "--resume=auto"}));
  fs::path replaced;
  for (const auto& entry : fs::directory_iterator(out))
    if (entry.path().filename().string().starts_with("replaced-")) replaced = entry.path();
  REQUIRE(!replaced.empty());
  CHECK(read_file(replaced / "checkpoints/last.pt") == last);
}

TEST_CASE("a run is not overwritten by one that begins from it", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=2"}));
  fs::copy_file(out / "checkpoints/last.pt", out / "checkpoints/mine.pt");
  fs::create_directory_symlink(out, dir.path() / "link");
  const auto before = files_in(out);
  const auto [flag, file] = GENERATE(table<std::string, std::string>({
      {"--init-weights=", "run"},
      {"--init-weights=", "run/../link/"},
      {"--init-weights=", "run/checkpoints/epoch=1-step=16.pt"},
      {"--init-weights=", "run/checkpoints/mine.pt"},
      {"--config=", "run/config.toml"},
  }));
  const auto named = (dir.path() / file).string();
  auto job = linear(out, {"--overwrite", flag + named, "--epochs=1"}, GENERATE(0, 1));
  if (job.argv[0] != worker_program()) job.argv.insert(job.argv.begin() + 1, "--max-restarts=1");
  const auto refused = end_of(job);
  CHECK(refused.status == ExitStatus::exited(2));
  CHECK_THAT(refused.err, ContainsSubstring(named + (flag == "--config="
                                                         ? " is where the run writes its own settings"
                                                         : " belongs to the run that --overwrite replaces")));
  CHECK(files_in(out) == before);
  require_success(linear(dir.path() / "new", {"--overwrite", flag + named, "--epochs=1"}));
}

TEST_CASE("the user's own file in a run's folder may be its beginning, unless the run replaces it",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  const auto [file, status] =
      GENERATE(table<std::string, int>({{"mine.toml", 0}, {"checkpoints/mine.toml", 0}, {"config.toml", 2}}));
  write(out / file, "task = \"linear\"\n[optim]\nlr = 0.01\n");
  const auto ended = end_of(linear(out, {"--overwrite", "--config=" + (out / file).string(), "--epochs=1"}));
  CAPTURE(ended.err);
  CHECK(ended.status == ExitStatus::exited(status));
  CHECK(read_file(out / file) == "task = \"linear\"\n[optim]\nlr = 0.01\n");
}

TEST_CASE("a resumed run has its own model, whatever has become of the run that it began from",
          "[training][run_folder]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto first = dir.path() / "first", out = dir.path() / "run";
  const auto train = [](const fs::path& folder, const std::vector<std::string>& flags) {
    auto job = mnist(0, folder, {"--data=fashion-mnist", "--limit-train=64", "--limit-test=10"});
    job.argv.insert(job.argv.end(), flags.begin(), flags.end());
    require_success(job);
  };
  const auto begin_from = "--init-weights=" + first.string();
  train(first, {"--epochs=1", "--dropout=0.125"});
  train(out, {"--epochs=1", begin_from});
  train(first, {"--epochs=1", "--overwrite", "--dropout=0.5"});
  train(out, {"--epochs=2", begin_from, "--resume=auto"});
  CHECK_THAT(read_file(out / "config.toml"), ContainsSubstring("\ndropout = 0.125\n"));
}

TEST_CASE("a run that is to be continued is not overwritten while the data is loaded",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", table = write_table(dir.path() / "table.csv", 64);
  const auto data = "--data=" + table.string();
  require_success(linear(out, {"--epochs=1", data}));
  Child continued(slow_to_load(table, linear(out, {"--resume=auto", "--epochs=2", data})));
  REQUIRE(wait_until([&] { return lock_folder(out) == nullptr; }));
  const auto refused = end_of(linear(out, {"--overwrite", "--epochs=1", data}));
  CHECK_THAT(refused.err, ContainsSubstring("another run is using " + out.string() + " now"));
  CHECK(continued.wait(kTraining) == ExitStatus::exited(0));
  CHECK(values_of(out, "step").back() == "16");
}

TEST_CASE("a checkpoint that appears while the data is loaded is not continued with other settings",
          "[training][run_folder]") {
  const TempDir dir;
  const auto other = dir.path() / "other", out = dir.path() / "run", fifo = dir.path() / "slow.csv";
  const auto table = write_table(dir.path() / "table.csv", 64);
  require_success(linear(other, {"--epochs=1", "--lr=0.5", "--data=" + table.string()}));
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  Child late(linear(out, {"--resume=auto", "--epochs=2", "--data=" + fifo.string()}));
  int data = -1;  // can be opened when the training has done so
  REQUIRE(wait_until([&] { return (data = ::open(fifo.c_str(), O_WRONLY | O_NONBLOCK)) >= 0; }));
  fs::copy(other, out, fs::copy_options::recursive);
  const auto rows = read_file(table);
  REQUIRE(::write(data, rows.data(), rows.size()) == static_cast<ssize_t>(rows.size()));
  ::close(data);
  CHECK(late.wait(kTraining) == ExitStatus::exited(2));
  CHECK_THAT(late.err(), ContainsSubstring("a checkpoint has appeared in " + out.string()));
  CHECK(files_in(out) == files_in(other));
}

TEST_CASE("a run that was set aside stays from the moment that a command line names it",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  end_of(linear(out, {"--overwrite", "--log-indices=/nowhere/x"}));
  const auto list = nlohmann::json::parse(read_file(out / "run.json"));
  const auto aside = out / list["replaced"][0].get<std::string>();
  const auto port = free_port();
  auto waits = linear(dir.path() / "new", {"--init-weights=" + aside.string(), "--timeout=3"});
  for (const auto& [name, value] :
       {std::pair("RANK", "0"), std::pair("WORLD_SIZE", "2"), std::pair("LOCAL_RANK", "0"),
        std::pair("MASTER_ADDR", "127.0.0.1"), std::pair("MASTER_PORT", port.c_str())})
    waits.env[name] = value;  // for a rank 1 that does not come
  CHECK(end_of(waits).status == ExitStatus::exited(1));
  CHECK_THAT(read_file(aside / "run.json"), !ContainsSubstring("set_aside"));
}

TEST_CASE("a run whose settings no checkpoint tells yet is not begun again by its folder",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  end_of(linear(out, {"--lr=0.5", "--log-indices=/nowhere/x"}));
  REQUIRE(fs::exists(out / "run.json"));
  const auto before = files_in(out);
  auto again = linear("", {"--epochs=1", "--resume=" + out.string()});
  std::erase(again.argv, "--out=");
  const auto refused = end_of(again);
  CHECK(refused.status == ExitStatus::exited(2));
  CHECK_THAT(refused.err, ContainsSubstring("--resume: " + out.string() + " has no checkpoint yet"));
  CHECK(files_in(out) == before);
  require_success(linear(out, {"--epochs=1", "--lr=0.5", "--resume=auto"}));
}

TEST_CASE("a new run does not begin from the one that it replaces though --resume=auto finds no checkpoint",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1", "--no-save-last", "--save-top-k=0"}));
  write(out / "mine.toml", "");
  const auto weights = out / "summary.json";
  const auto before = files_in(out);
  const auto refused = end_of(
      linear(out, {"--overwrite", "--resume=auto", "--epochs=2", "--init-weights=" + weights.string()}));
  CHECK(refused.status == ExitStatus::exited(2));
  CHECK_THAT(refused.err, ContainsSubstring("belongs to the run that --overwrite replaces"));
  CHECK(files_in(out) == before);
}

TEST_CASE("a run that was set aside stays if another one that overwrites begins from it",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto aside =
      out / ("replaced-" + nlohmann::json::parse(read_file(out / "run.json"))["run"].get<std::string>());
  end_of(linear(out, {"--overwrite", "--log-indices=/nowhere/x"}));
  const auto [flag, file] = GENERATE(table<std::string, std::string>({
      {"--resume=", "checkpoints/last.pt"},
      {"--resume=", ""},
      {"--init-weights=", ""},
      {"--config=", "config.toml"},
  }));
  require_success(linear(out, {"--epochs=2", "--overwrite", flag + (aside / file).string()}));
  CHECK(fs::exists(aside / "checkpoints/last.pt"));
}

TEST_CASE("a command that does not overwrite reads the new run's settings before that has a checkpoint",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1", "--lr=0.01"}));
  end_of(linear(out, {"--overwrite", "--lr=5", "--log-indices=/nowhere/x"}));
  const auto shown =
      end_of(worker({"linear", "--config=" + (out / "config.toml").string(), "--print-config"}));
  CAPTURE(shown.err);
  CHECK_THAT(shown.out, ContainsSubstring("\nlr = 5.0\n"));
  const auto into_another =
      end_of(worker({"linear", "--config=" + (out / "config.toml").string(), "--overwrite",
                     "--out=" + (dir.path() / "new").string(), "--print-config"}));
  CHECK_THAT(into_another.out, ContainsSubstring("\nlr = 5.0\n"));
}

TEST_CASE("a run that was set aside stays from the moment that a training is to continue it there",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", table = write_table(dir.path() / "table.csv", 64);
  const auto data = "--data=" + table.string();
  require_success(linear(out, {"--epochs=1", data}));
  end_of(linear(out, {"--overwrite", data, "--log-indices=/nowhere/x"}));
  const auto list = nlohmann::json::parse(read_file(out / "run.json"));
  const auto aside = out / list["replaced"][0].get<std::string>();
  const bool elsewhere = GENERATE(false, true);
  auto slow = linear(dir.path() / "new", {"--resume=" + aside.string(), "--epochs=2", data});
  if (!elsewhere) std::erase_if(slow.argv, [](const auto& word) { return word.starts_with("--out"); });
  Child continued(slow_to_load(table, slow));
  REQUIRE(wait_until([&] { return read_file(aside / "run.json").find("set_aside") == std::string::npos; }));
  require_success(linear(out, {"--overwrite", "--epochs=1", data}));
  CHECK(continued.wait(kTraining) == ExitStatus::exited(0));
  CHECK(values_of(elsewhere ? dir.path() / "new" : aside, "step").back() == "16");
}

TEST_CASE("where a run was moved, another interrupted --overwrite moves it back to there",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto aside = replace_without_list(out);
  end_of(killed_at(aside / "metrics.csv", linear(aside, {"--overwrite"})));
  require_success(worker({"runs", out}));
  require_success(worker({"runs", aside}));
  for (const auto* name : {"config.toml", "environment.json", "metrics.csv", "checkpoints/last.pt"})
    CHECK(fs::exists(aside / name));
}

TEST_CASE("a run that is resumed does not read its initial weights", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto gone = GENERATE("gone.pt", "no-run");
  fs::create_directory(dir.path() / "no-run");
  require_success(linear(out,
                         {"--epochs=2", "--resume=auto", "--init-weights=" + (dir.path() / gone).string()},
                         GENERATE(0, 2)));
  CHECK(values_of(out, "step").back() != "8");
}

TEST_CASE("with --resume=auto the run in --out is meant, though there is a folder auto",
          "[training][run_folder]") {
  const TempDir dir;
  const auto train = [&](const std::string& out, const std::vector<std::string>& flags) {
    auto command = linear(out, flags);
    command.in_child = [folder = dir.path()] {
      if (::chdir(folder.c_str()) != 0) ::_exit(122);
    };
    require_success(command);
    return values_of(dir.path() / out, "step").back();
  };
  CHECK(train("auto", {"--epochs=4"}) == "32");
  CHECK(train("run", {"--epochs=1"}) == "8");
  CHECK(train("run", {"--epochs=2", "--resume=auto"}) == "16");
  CHECK(train("new", {"--epochs=1", "--resume=auto"}) == "8");
}

TEST_CASE("a run without its list moves back after an --overwrite that was killed",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  fs::remove(out / "run.json");
  SECTION("while it moved the run") {
    end_of(killed_at(out / "metrics.csv", linear(out, {"--overwrite"})));
    REQUIRE(fs::exists(out / "replaced-earlier/config.toml"));
    require_success(linear(out, {"--epochs=2", "--resume=auto"}));
    CHECK(values_of(out, "step").back() == "16");
    CHECK_FALSE(fs::exists(out / "replaced-earlier"));
  }
  SECTION("and after that is named") {
    end_of(linear(out, {"--overwrite", "--log-indices=/nowhere/x"}));
    CHECK_THAT(end_of(linear(out, {"--epochs=1", "--resume=auto"})).err,
               ContainsSubstring("starting from scratch; earlier runs, which were set aside, are in " +
                                 (out / "replaced-earlier").string()));
  }
}

TEST_CASE("an --overwrite that its user interrupts keeps the earlier run, which can go on meanwhile",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  const auto replaced =
      out / ("replaced-" + nlohmann::json::parse(read_file(out / "run.json"))["run"].get<std::string>());
  Child child(linear(
      out, {"--overwrite", "--log-interval=1", "--limit-train=4000", "--batch-size=1", "--no-report"}));
  REQUIRE(wait_until([&] {
    return fs::exists(replaced / "metrics.csv") && fs::exists(out / "metrics.csv") &&
           count_of("\n", read_file(out / "metrics.csv")) > 3;
  }));
  const bool goes_on = GENERATE(false, true);
  if (goes_on) {
    child.send_signal(SIGSTOP);
    require_success(linear(replaced, {"--epochs=2", "--resume=auto"}));
    child.send_signal(SIGCONT);
  }
  child.send_signal(SIGINT);
  child.wait(kTraining);
  CAPTURE(child.out(), child.err());
  CHECK(fs::exists(out / "checkpoints/last.pt"));
  CHECK(fs::exists(replaced / "checkpoints/last.pt"));
  CHECK_THAT(child.err(),
             ContainsSubstring("the run that --overwrite has replaced is in " + replaced.string()));
}

TEST_CASE("the end of another branch is not this one's", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=2"}));
  const auto first = read_file(out / "summary.json");
  require_success(linear(
      out, {"--epochs=2", "--lr=0.5", "--resume=" + (out / "checkpoints/epoch=0-step=8.pt").string()}));
  CHECK(read_file(out / "summary-branch=1.json") == first);
  const auto back =
      end_of(linear(out, {"--epochs=2", "--resume=" + (out / "checkpoints/last-branch=1.pt").string()}));
  CHECK_THAT(back.err, !ContainsSubstring("has ended"));
  CHECK_THAT(read_file(out / "run.json"), ContainsSubstring("\"summary.json\": 3"));
}

TEST_CASE("a newest checkpoint that is gone is missed", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=3"}));
  fs::remove(out / "checkpoints/last.pt");
  SECTION("in the newest branch, which another one goes on from") {
    fs::remove(out / "checkpoints/epoch=2-step=24.pt");
    const auto ended = end_of(linear(out, {"--epochs=3", "--resume=auto"}));
    CHECK(ended.status == ExitStatus::exited(0));
    CHECK_THAT(ended.err, ContainsSubstring("last.pt: is gone, though run.json lists it"));
    CHECK_THAT(read_file(out / "metrics-branch=1.csv"), ContainsSubstring("\n2,24,"));
  }
  SECTION("as the only one of its branch") {
    require_success(linear(out, {"--epochs=2", "--save-top-k=0",
                                 "--resume=" + (out / "checkpoints/epoch=0-step=8.pt").string()}));
    for (const auto& entry : fs::directory_iterator(out / "checkpoints"))
      if (entry.path().filename().string().starts_with("last")) fs::remove(entry.path());
    const auto before = files_in(out);
    const auto refused = end_of(linear(out, {"--epochs=4", "--resume=auto"}));
    CHECK(refused.status != ExitStatus::exited(0));
    CHECK_THAT(refused.err, ContainsSubstring("is gone, though run.json lists it; nothing was changed"));
    CHECK(files_in(out) == before);
  }
}

TEST_CASE("a search for the learning rate leaves a run without its list as it is", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1"}));
  fs::remove(out / "run.json");
  require_success(linear(out, {"--find-lr"}));
  CHECK_THAT(end_of(linear(out, {"--epochs=2", "--resume=auto"})).out, ContainsSubstring("at step 8"));
}

TEST_CASE("a job that is restarted before its first checkpoint begins again", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", events = dir.path() / "events";
  auto job = linear(out,
                    {"--epochs=2", "--save-top-k=0", "--no-save-last", "--log-interval=1",
                     "--limit-train=4000", "--batch-size=1", "--no-report"},
                    2);
  job.argv.insert(job.argv.begin() + 1, {"--max-restarts=1", "--events-json=" + events.string()});
  Child child(job);
  REQUIRE(wait_until(
      [&] { return fs::exists(out / "metrics.csv") && count_of("\n", read_file(out / "metrics.csv")) > 3; }));
  kill_rank(events, 1);
  CHECK(child.wait(kTraining) == ExitStatus::exited(0));
  CAPTURE(child.err());
}

TEST_CASE("two runs' checkpoints without a list are not mixed", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", other = dir.path() / "other";
  require_success(linear(out, {"--epochs=1"}));
  require_success(linear(other, {"--epochs=2"}));
  fs::remove(out / "run.json");
  fs::copy_file(other / "checkpoints/last.pt", out / "checkpoints/other.pt");
  const auto before = files_in(out);
  const auto refused = end_of(linear(out, {"--epochs=3", "--resume=auto"}));
  CHECK(refused.status != ExitStatus::exited(0));
  CHECK_THAT(refused.err, ContainsSubstring("has no run.json, and checkpoints of two runs"));
  CHECK(files_in(out) == before);
}

TEST_CASE("a refused --resume FILE changes nothing", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=2"}));
  write(out / "profile/operators.txt", "mine");
  const auto before = files_in(out);
  const auto refused = end_of(linear(
      out, {"--epochs=2", "--profile", "--resume=" + (out / "checkpoints/epoch=0-step=8.pt").string()}));
  CHECK(refused.status != ExitStatus::exited(0));
  CHECK(files_in(out) == before);
}

TEST_CASE("a run's own checkpoint continues it, whatever its path is", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=2"}));
  const auto backup = dir.path() / "backup.pt";
  fs::copy_file(out / "checkpoints/epoch=0-step=8.pt", backup);
  require_success(linear(out, {"--epochs=3", "--resume=" + backup.string()}));
  CHECK(fs::exists(out / "checkpoints/last-branch=1.pt"));
}

TEST_CASE("the best checkpoint is known however the folder is called", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", link = dir.path() / "link";
  require_success(linear(out, {"--epochs=2", "--save-top-k=1", "--val-split=0.25"}));
  const fs::path best = read_summary(out)["best_checkpoint"].get<std::string>();
  fs::create_directory_symlink(out, link);
  const auto ended =
      end_of(linear(link, {"--epochs=4", "--lr=5", "--save-top-k=1", "--val-split=0.25", "--resume=auto"}));
  CHECK(ended.status == ExitStatus::exited(0));
  CHECK_THAT(ended.err, !ContainsSubstring("is gone"));
  CHECK(read_summary(link)["best_checkpoint"] == (link / "checkpoints" / best.filename()).string());
}

TEST_CASE("a folder's name may have a line end, with shards too", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "two\nlines";
  require_success(linear(out, {"--epochs=1", "--fsdp"}, 2));
  require_success(linear(out, {"--epochs=2", "--fsdp", "--resume=auto"}, 2));
}

TEST_CASE("runs and checkpoints are listed, and pruned by rule", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "runs/a";
  require_success(linear(out, {"--epochs=4", "--val-split=0.25"}));
  write(out / "checkpoints/mine.pt", "mine");
  fs::copy_file(out / "checkpoints/last.pt", out / "checkpoints/good.pt");
  require_success(linear(out, {"--epochs=5", "--val-split=0.25", "--resume=auto"}));
  const auto runs = end_of(worker({"runs", (dir.path() / "runs").string()}));
  CHECK_THAT(runs.out,
             ContainsSubstring("FOLDER") && ContainsSubstring(out.string()) && ContainsSubstring("val_loss"));
  const auto states = end_of(worker({"runs", out.string()}));
  CHECK_THAT(states.out, ContainsSubstring("last.pt") && ContainsSubstring("epoch=0-step=8.pt"));
  const auto before = files_in(out);
  CHECK(end_of(worker({"prune", out.string(), "--dry-run"})).status == ExitStatus::exited(0));
  CHECK(files_in(out) == before);
  const auto pruned = end_of(worker({"prune", out.string(), "--keep-last=2"}));
  CAPTURE(pruned.out, pruned.err);
  CHECK(pruned.status == ExitStatus::exited(0));
  std::vector<std::string> kept;
  for (const auto& entry : fs::directory_iterator(out / "checkpoints"))
    kept.push_back(entry.path().filename());
  std::ranges::sort(kept);
  CHECK(kept == std::vector<std::string>{"epoch=0-step=8.pt", "epoch=3-step=32.pt", "epoch=4-step=40.pt",
                                         "good.pt", "last.pt", "mine.pt"});
  require_success(linear(out, {"--epochs=6", "--val-split=0.25", "--resume=auto"}));
}

TEST_CASE("worker runs lists what run.json and the files say", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "runs/a", checkpoints = out / "checkpoints";
  require_success(linear(out, {"--epochs=3", "--val-split=0.25"}));
  const auto middle = "--resume=" + (checkpoints / "epoch=0-step=8.pt").string();
  require_success(linear(out, {"--epochs=2", "--val-split=0.25", middle}));
  const auto run = nlohmann::json::parse(read_file(out / "run.json"));
  const auto id = run["run"].get<std::string>();
  REQUIRE(run["branch"] == 2);

  const auto words_of_line = [&](const fs::path& folder, const std::string& first) {
    std::istringstream lines(end_of(worker({"runs", folder.string()})).out);
    std::vector<std::string> words;
    for (std::string line; std::getline(lines, line) && words.empty();)
      if (std::istringstream all(line); line.starts_with(first + " "))
        words.assign(std::istream_iterator<std::string>(all), {});
    return words;
  };
  const auto in_kib = [](std::uintmax_t bytes) {
    return formatted("%.1f", static_cast<double>(bytes) / 1024);
  };
  std::uintmax_t bytes = 0;
  for (const auto& [name, content] : files_in(out)) bytes += content.size();
  std::vector<std::string> scores;  // of the epochs of this branch
  for (const auto& loss : values_of(out, "val_loss")) scores.push_back(formatted("%.4g", std::stod(loss)));
  REQUIRE(scores.size() == 2);
  using Words = std::vector<std::string>;
  CHECK(words_of_line(dir.path() / "runs", out.string()) ==
        Words{out.string(), id, "2", "2", "16", "val_loss", std::ranges::min(scores), in_kib(bytes), "KiB"});
  CHECK(words_of_line(out, "run") ==
        Words{"run", id + ",", "branch", "2,", in_kib(bytes), "KiB", "in", out.string()});
  const auto check_row = [&](const std::string& name, Words words) {
    CAPTURE(name);
    words.insert(words.begin(), name);
    words.insert(words.end(), {in_kib(fs::file_size(checkpoints / name)), "KiB"});
    CHECK(words_of_line(out, name) == words);
  };
  check_row("last.pt", {"2", "2", "16", "-"});
  check_row("epoch=1-step=16-v1.pt", {"2", "2", "16", scores[1]});
  check_row("epoch=0-step=8.pt", {"1", "1", "8", scores[0]});
  check_row("epoch=2-step=24.pt", {"1", "3", "24", "-"});

  damage_tensor(checkpoints / "last.pt");  // of which a list reads only the head
  const auto listed = end_of(worker({"runs", out.string()}));
  CHECK(listed.status == ExitStatus::exited(0));
  CHECK_THAT(listed.out, ContainsSubstring("epoch=1-step=16-v1.pt"));
  damage(checkpoints / "last.pt");
  const auto all = end_of(worker({"runs", (dir.path() / "runs").string()}));
  CHECK_THAT(all.out, ContainsSubstring(out.string() + " "));
}

TEST_CASE("prune refuses a run of an older version, which has no run.json, and changes nothing",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=3"}));
  fs::remove(out / "run.json");
  const auto before = files_in(out);
  for (const auto& words :
       {std::vector<std::string>{"prune", out.string()}, {"prune", out.string(), "--dry-run"}}) {
    const auto refused = end_of(worker(words));
    CHECK(refused.status == ExitStatus::exited(1));
    CHECK(refused.out.empty());
    CHECK(refused.err == "worker: error: " + out.string() +
                             ": has no run.json; a run of an older version is not pruned, because it has no "
                             "list of its files\n");
    CHECK(files_in(out) == before);
  }
}

TEST_CASE("prune keeps what it cannot read, and counts only what it can", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", checkpoints = out / "checkpoints";
  const bool sharded = GENERATE(false, true);
  std::vector<std::string> flags = {"--epochs=3", "--val-split=0.25"};
  if (sharded) flags.emplace_back("--fsdp");
  require_success(linear(out, flags, sharded ? 2 : 0));
  const auto steps = sharded ? std::vector{4, 8, 12} : std::vector{8, 16, 24};
  const auto of_epoch = [&](std::size_t epoch) {
    return checkpoints / ("epoch=" + std::to_string(epoch) + "-step=" + std::to_string(steps[epoch]) + ".pt");
  };
  if (sharded) {  // which the last two share
    for (const auto& entry : fs::directory_iterator(checkpoints))
      if (count_of("-step=" + std::to_string(steps[2]) + "-", entry.path().filename()) > 0)
        fs::remove(entry.path() / "rank-1");
  } else {
    damage_tensor(checkpoints / "last.pt");
    damage_tensor(of_epoch(2));
  }
  const bool keeps_best = GENERATE(false, true);
  const auto pruned = end_of(worker({"prune", out.string(), keeps_best ? "--keep-best=1" : "--keep-best=0"}));
  CAPTURE(pruned.out, pruned.err);
  CHECK(pruned.status == ExitStatus::exited(0));
  CHECK(fs::exists(checkpoints / "last.pt"));
  CHECK(fs::exists(of_epoch(2)));
  CHECK(fs::exists(of_epoch(1)));  // the newest that can be continued
  CHECK((keeps_best || !fs::exists(of_epoch(0))));
  require_success(
      linear(out, {"--epochs=4", "--val-split=0.25", "--resume=auto", sharded ? "--fsdp" : "--fsdp=false"},
             sharded ? 2 : 0));
}

TEST_CASE("without its best checkpoint, a run's next best one is it for every command",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", other = dir.path() / "other", model = dir.path() / "model.pt";
  require_success(linear(out, {"--limit-train=1000", "--batch-size=32", "--epochs=4", "--val-split=0.25",
                               "--save-top-k=3", "--lr=0.01"}));
  require_success(linear(other, {"--epochs=1", "--lr=3"}));
  const fs::path best = read_summary(out)["best_checkpoint"].get<std::string>();
  const auto losses = values_of(out, "val_loss");
  std::map<double, fs::path> others;
  for (const auto& entry : fs::directory_iterator(out / "checkpoints"))
    if (const auto name = entry.path().filename().string(); entry.path() != best && name != "last.pt")
      others[std::stod(losses.at(std::stoul(name.substr(name.find('=') + 1))))] = entry.path();
  REQUIRE(others.size() == 2);
  const auto second = others.begin()->second, third = others.rbegin()->second;
  if (GENERATE(true, false))
    fs::remove(best);
  else
    fs::copy_file(other / "checkpoints/last.pt", best, fs::copy_options::overwrite_existing);
  const auto evaluated = end_of(worker({"linear", "--eval=" + out.string(), "--out=" + model.string()}));
  CAPTURE(evaluated.err);
  CHECK_THAT(evaluated.err, ContainsSubstring(second.string() + ", the best checkpoint (val_loss"));
  const auto pruned = end_of(worker({"prune", out.string(), "--keep-best=1"}));
  CAPTURE(pruned.out);
  CHECK(pruned.status == ExitStatus::exited(0));
  CHECK(fs::exists(second));
  CHECK_FALSE(fs::exists(third));
}

TEST_CASE("a run whose best checkpoint is damaged ends with the next best one", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  const bool sharded = GENERATE(false, true);
  const auto train = [&](const std::string& epochs) {
    return end_of(linear(
        out,
        {"--resume=auto", "--val-split=0.25", "--save-top-k=2", epochs, sharded ? "--fsdp" : "--lr=0.01"},
        sharded ? 2 : 0));
  };
  REQUIRE(train("--epochs=4").status == ExitStatus::exited(0));
  const auto best_now = [&] { return fs::path(read_summary(out)["best_checkpoint"].get<std::string>()); };
  const auto best = best_now();
  if (sharded) {
    for (const auto& entry : fs::directory_iterator(out / "checkpoints"))
      if (entry.is_directory() && entry.path().filename().string().starts_with(best.stem().string()))
        damage(entry.path() / "rank-1");
  } else {
    damage_tensor(best);
  }
  const auto ended = train("--epochs=5");
  CAPTURE(ended.out, ended.err);
  CHECK(ended.status == ExitStatus::exited(0));
  CHECK_THAT(ended.err, ContainsSubstring("; this best checkpoint no longer counts"));
  CHECK(best_now() != best);
  CHECK(fs::exists(best_now()));
  CHECK(fs::exists(best));  // for whoever can mend it
}

TEST_CASE("a run whose only checkpoint is damaged writes its end", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  const std::vector<std::string> flags = {"--epochs=400", "--limit-train=64", "--val-split=0.25",
                                          "--save-top-k=1", "--no-save-last"};
  Child child(linear(out, flags));
  REQUIRE(wait_until([&] { return fs::exists(out / "checkpoints/epoch=0-step=8.pt"); }));  // the best of all
  damage_tensor(out / "checkpoints/epoch=0-step=8.pt");
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CAPTURE(child.out(), child.err());
  CHECK_THAT(child.err(), ContainsSubstring("; this best checkpoint no longer counts"));
  CHECK(read_summary(out)["checkpoint"] == (out / "checkpoints/last.pt").string());
  CHECK(fs::exists(out / "checkpoints/last.pt"));
}

TEST_CASE("prune keeps the best of each branch, as its newest checkpoint that has scores tells",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=3", "--val-split=0.25", "--save-top-k=1"}));
  const fs::path best = read_summary(out)["best_checkpoint"].get<std::string>();
  if (GENERATE(true, false)) {
    require_success(linear(out, {"--epochs=4", "--val-split=0.25", "--save-top-k=0", "--resume=auto"}));
  } else {
    fs::copy_file(out / "checkpoints/last.pt", dir.path() / "earlier.pt");
    require_success(linear(out, {"--epochs=4", "--val-split=0.25", "--save-top-k=1", "--resume=auto"}));
    require_success(linear(out, {"--epochs=5", "--val-split=0.25", "--save-top-k=1", "--lr=3",
                                 "--resume=" + (dir.path() / "earlier.pt").string()}));
  }
  const auto scores = [&] {
    std::set<std::string> all;
    for (const auto& name : files_in(out / "checkpoints"))
      if (name.first.starts_with("epoch=")) all.insert(name.first);
    return all;
  };
  const auto before = scores();
  REQUIRE(!before.empty());
  CHECK(end_of(worker({"prune", out.string(), "--keep-best=1"})).status == ExitStatus::exited(0));
  CHECK(scores() == before);  // each is the best of its branch
}

TEST_CASE("no command writes over a run's checkpoint, whatever path leads to it", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", last = out / "checkpoints/last.pt";
  require_success(linear(out, {"--epochs=1"}));
  fs::create_directory_symlink(out / "checkpoints", dir.path() / "link");
  const auto before = files_in(out);
  for (const fs::path& path : {last, out / "checkpoints/./last.pt", dir.path() / "link/last.pt"})
    for (const auto& words : std::vector<std::vector<std::string>>{
             {"export", out.string(), path.string()}, {"report", out.string(), "--out=" + path.string()}}) {
      const auto ended = end_of(worker(words));
      CAPTURE(path, words[0], ended.err);
      CHECK(ended.status == ExitStatus::exited(2));
      CHECK_THAT(ended.err, ContainsSubstring("which would lose it"));
    }
  CHECK(files_in(out) == before);
}

TEST_CASE("a folder whose checkpoints are a link to another run's does not go on with them",
          "[training][run_folder]") {
  const TempDir dir;
  const auto run = dir.path() / "run", other = dir.path() / "other";
  require_success(linear(run, {"--epochs=1"}));
  fs::create_directory(other);
  fs::create_directory_symlink(run / "checkpoints", other / "checkpoints");
  const auto before = files_in(run);
  const auto ended = end_of(linear(other, {"--epochs=2", "--resume=auto"}));
  CHECK(ended.status == ExitStatus::exited(1));
  CHECK_THAT(ended.err, ContainsSubstring("leads to the checkpoints of the run in " + run.string()));
  CHECK(files_in(run) == before);
}

TEST_CASE("each training of a job that is restarted goes on in its own run", "[training][run_folder]") {
  const TempDir dir;
  const auto worker = worker_program() + " linear --limit-train=64 --batch-size=8 ";
  Command command;
  command.argv = {program("DDPRUN_PROGRAM", DDPRUN_PROGRAM),
                  "--nproc-per-node=1",
                  "--max-restarts=1",
                  "sh",
                  "-c",
                  "cd " + dir.path().string() + " && " + worker + "--epochs=2 --lr=0.01 && " + worker +
                      "--epochs=3 --lr=0.5 && [ $TORCHELASTIC_RESTART_COUNT = 1 ]"};
  const auto ended = end_of(command);
  CAPTURE(ended.err);
  CHECK(ended.status == ExitStatus::exited(0));
  std::set<std::string> rates;
  for (const auto& entry : fs::directory_iterator(dir.path() / "runs"))
    rates.insert(read_metrics(entry.path()).back()["lr"] + " after " +
                 read_metrics(entry.path()).back()["epoch"]);
  CHECK(rates == std::set<std::string>{"0.01 after 1", "0.5 after 2"});
}

TEST_CASE("a training that another one of its job has overwritten is not continued as that one",
          "[training][run_folder]") {
  const TempDir dir;
  const auto worker = worker_program() + " linear --limit-train=64 --batch-size=8 --out=a --overwrite ";
  const std::string third = GENERATE("", "linear --out=a --resume=auto --epochs=4 && ");
  Command command;
  command.argv = {program("DDPRUN_PROGRAM", DDPRUN_PROGRAM),
                  "--nproc-per-node=1",
                  "--max-restarts=1",
                  "sh",
                  "-c",
                  "cd " + dir.path().string() + " && " + worker +
                      "--epochs=2 --lr=0.01 && cp a/metrics.csv " + "first.csv && " + worker +
                      "--epochs=3 --lr=0.5 && " + (third.empty() ? third : worker_program() + " " + third) +
                      "[ $TORCHELASTIC_RESTART_COUNT = 1 ]"};
  const auto ended = end_of(command);
  CAPTURE(ended.err);
  CHECK_FALSE(ended.status == ExitStatus::exited(0));
  CHECK_THAT(ended.err, ContainsSubstring("--out: in a, another command of this job has overwritten"));
  CHECK(read_metrics(dir.path() / "a").back()["epoch"] == (third.empty() ? "2" : "3"));
  CHECK(count_of("\n1,", read_file(dir.path() / "first.csv")) > 0);
}

TEST_CASE("what a training kept in memory is not another's of the same job", "[training][run_folder]") {
  const TempDir dir;
  const auto worker = worker_program() + " linear --limit-train=64 --batch-size=8 ";
  Command command;
  command.argv = {
      program("DDPRUN_PROGRAM", DDPRUN_PROGRAM),
      "--nproc-per-node=1",
      "--max-restarts=1",
      "--recover=rank",
      "sh",
      "-c",
      "cd " + dir.path().string() + "; " + worker +
          "--epochs=150 --out=a --memory-checkpoint-every=5 & p=$!; if [ $DDPRUN_ROUND = 0 ]; then "
          "until [ -e a/checkpoints/last.pt ]; do sleep 0.1; done; kill -KILL $p; fi; wait $p && " +
          worker + "--epochs=2 --lr=0.5 --out=b"};
  const auto ended = end_of(command);
  CAPTURE(ended.err);
  CHECK(ended.status == ExitStatus::exited(0));
  CHECK(read_metrics(dir.path() / "a").back()["epoch"] == "149");
  CHECK(read_metrics(dir.path() / "b").back()["epoch"] == "1");
}

TEST_CASE("a run's folder stands for its newest branch or for nothing", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", checkpoints = out / "checkpoints";
  const std::vector<std::string> flags = {"--val-split=0.25", "--save-top-k=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  require_success(linear(out, with({"--epochs=1"})));
  fs::copy_file(checkpoints / "last.pt", dir.path() / "middle.pt");
  require_success(linear(out, with({"--epochs=2", "--resume=auto"})));
  const auto before = files_in(checkpoints);
  require_success(linear(out, with({"--epochs=3", "--resume=" + (dir.path() / "middle.pt").string()})));
  const bool removes = GENERATE(true, false);
  for (const auto& [name, bytes] : files_in(checkpoints)) {
    if (name != "last.pt" && (before.contains(name) || name == "last-branch=1.pt")) continue;
    if (removes)
      fs::remove(checkpoints / name);
    else
      fs::resize_file(checkpoints / name, 1000);
  }
  const auto new_folder = "--out=" + (dir.path() / "new").string();
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"linear", "--eval=" + out.string(), new_folder},
           {"linear", "--resume=" + out.string(), new_folder, "--epochs=5"},
           {"linear", "--init-weights=" + out.string(), new_folder},
           {"export", out.string(), (dir.path() / "weights.pt").string()}}) {
    const auto ended = end_of(worker(words));
    CAPTURE(words, ended.out, ended.err);
    CHECK(ended.status == ExitStatus::exited(1));
    CHECK_THAT(ended.err, ContainsSubstring(checkpoints.string() + "/"));
  }
  CHECK_FALSE(fs::exists(dir.path() / "weights.pt"));
}

TEST_CASE("a run without any checkpoint is resumed by its folder as by --resume auto",
          "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  require_success(linear(out, {"--epochs=1", "--no-save-last", "--save-top-k=0"}));
  if (GENERATE(false, true)) {  // which nobody writes to
    fs::remove(out / "summary.json");
    REQUIRE(::mkfifo((out / "summary.json").c_str(), 0600) == 0);
  }
  auto again = linear("", {"--epochs=1", "--no-save-last", "--save-top-k=0", "--resume=" + out.string()});
  std::erase(again.argv, "--out=");
  const auto ended = end_of(again);
  CAPTURE(ended.out, ended.err);
  CHECK(ended.status == ExitStatus::exited(0));
}

TEST_CASE("prune waits for nobody, and reads nothing of a run that is in use", "[training][run_folder]") {
  const TempDir dir;
  write(dir.path() / "run.json", "is not read");
  const UniqueFd lock(::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(::flock(lock.get(), LOCK_EX | LOCK_NB) == 0);
  const auto ended = end_of(worker({"prune", dir.path().string()}));
  CHECK(ended.status == ExitStatus::exited(2));
  CHECK_THAT(ended.err, ContainsSubstring("another run is using"));
  fs::remove(dir.path() / "run.json");
  CHECK_THAT(end_of(worker({"prune", dir.path().string()})).err,
             ContainsSubstring("is not the folder of a run"));
}

TEST_CASE("another run's end is not this one's", "[training][run_folder]") {
  const TempDir dir;
  const auto other = dir.path() / "other", out = dir.path() / "run";
  require_success(linear(other, {"--epochs=2"}));
  require_success(linear(out, {"--epochs=2"}));
  const auto resume = "--resume=" + (other / "checkpoints/last.pt").string();
  const auto before = files_in(out);
  CHECK(end_of(linear(out, {"--epochs=2", resume})).status == ExitStatus::exited(2));
  CHECK(files_in(out) == before);
  require_success(linear(out, {"--epochs=2", resume, "--overwrite"}));
  CHECK(nlohmann::json::parse(read_file(out / "run.json"))["run"] !=
        nlohmann::json::parse(before.at("run.json"))["run"]);
}

TEST_CASE("another run's checkpoint under the name of a best one does not count", "[training][run_folder]") {
  const TempDir dir;
  const auto out = dir.path() / "run", other = dir.path() / "other";
  const std::vector<std::string> flags = {"--val-split=0.25", "--save-top-k=2", "--mode=max",
                                          "--monitor=val_loss"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  require_success(linear(out, with({"--epochs=3"})));
  require_success(linear(other, {"--epochs=1", "--lr=3"}));
  const fs::path best = read_summary(out)["best_checkpoint"].get<std::string>();
  const auto others = read_file(other / "checkpoints/last.pt");
  fs::copy_file(other / "checkpoints/last.pt", best, fs::copy_options::overwrite_existing);
  const auto ended = end_of(linear(out, with({"--epochs=4", "--resume=auto"})));
  CHECK_THAT(ended.err,
             ContainsSubstring(best.filename().string() + ": was not written by this run, and is kept"));
  CHECK(read_summary(out)["best_checkpoint"] != best.string());
  CHECK(read_file(best) == others);
}

TEST_CASE("a restarted job without --out goes on in the folder that it has begun", "[training][run_folder]") {
  const TempDir dir;
  const auto events = dir.path() / "events";
  auto job = linear("", {"--epochs=400", "--batch-size=1", "--no-report"}, 2);
  std::erase(job.argv, "--out=");
  job.argv.insert(job.argv.begin() + 1, {"--max-restarts=1", "--events-json=" + events.string()});
  job.in_child = [folder = dir.path()] {
    if (::chdir(folder.c_str()) != 0) ::_exit(122);
  };
  Child child(job);
  const auto runs = [&] {
    std::vector<fs::path> all;
    std::error_code error;
    for (fs::directory_iterator entry(dir.path() / "runs", error), end; !error && entry != end; ++entry)
      all.push_back(entry->path());
    return all;
  };
  REQUIRE(wait_until(
      [&] { return !runs().empty() && fs::exists(runs()[0] / "checkpoints/epoch=2-step=96.pt"); }));
  kill_rank(events, 1);
  REQUIRE(child.wait_for_output("resumed from runs/", 1, kTraining));
  child.send_signal(SIGTERM);
  child.wait(kTraining);
  CHECK(runs().size() == 1);
}

}  // namespace ddprun::test

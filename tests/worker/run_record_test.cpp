#include "worker/train/run_record.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <fstream>
#include <string>

#include "common/errors.h"
#include "common/files.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;
using namespace ddprun;
using ddprun::test::ContainsSubstring;
using ddprun::train::RunRecord;

namespace {

/// Fills the disk to its last byte.
void fill(const fs::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string page(4096, 'x');
  while (::write(fd.get(), page.data(), page.size()) > 0) continue;
}

/// What a run does whose disk is full when it starts, and is not later. In a process of its own.
void start_on_a_full_disk(const fs::path& disk) {
  fill(disk / "filler");
  RunRecord record(disk);
  ensure(!fs::exists(record.metrics_path()), "nothing is left that would pass for a run");
  record.add_metrics({{"epoch", 0}});
  ensure(!fs::exists(record.metrics_path()), "nor after a row that has no place");
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
  if (::getuid() != 0) test::skip("needs root to make a small disk");
  const TempDir dir;
  const auto disk = dir.path().string();
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0)
      ::_exit(122);
    try {
      start_on_a_full_disk(disk);
      ::_exit(0);
    } catch (const std::exception& error) {
      ::_exit(::write(STDERR_FILENO, error.what(), std::string(error.what()).size()) > 0 ? 1 : 2);
    }
  }
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  if (status == W_EXITCODE(122, 0)) test::skip("this machine lets nobody mount a disk");
  CHECK(status == 0);
}

TEST_CASE("a new run removes what an earlier one left, and nothing else", "[run_record]") {
  const TempDir dir;
  fs::create_directory(dir.path() / "checkpoints");
  for (const char* name : {"metrics.csv", "summary.json", ".summary.json.tmp.12", "checkpoints/last.pt",
                           "checkpoints/.last.pt.tmp.34", "checkpoints/mine.pt", "notes"})
    std::ofstream(dir.path() / name) << "earlier\n";
  const RunRecord record(dir.path());
  CHECK_THAT(read_file(dir.path() / "metrics.csv"),
             ContainsSubstring("epoch,step,lr,") && !ContainsSubstring("earlier"));
  for (const char* name :
       {"summary.json", ".summary.json.tmp.12", "checkpoints/last.pt", "checkpoints/.last.pt.tmp.34"})
    CHECK_FALSE(fs::exists(dir.path() / name));
  for (const char* name : {"notes", "checkpoints/mine.pt"}) CHECK(fs::exists(dir.path() / name));
}

TEST_CASE("a run whose files cannot be started fails at once", "[run_record]") {
  const TempDir dir;
  fs::create_directories(dir.path() / "metrics.csv" / "full");
  CHECK_THROWS_WITH(
      RunRecord(dir.path()),
      ContainsSubstring("metrics.csv: cannot remove this of an earlier run: Directory not empty"));
  CHECK_THROWS_WITH(RunRecord(dir.path() / "none"),
                    ContainsSubstring("metrics.csv: cannot create: No such file"));
}

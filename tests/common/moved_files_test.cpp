#include <ddprun/common/moved_files.h>

#include <filesystem>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

TEST_CASE("a free name has the next version, and the newest one is found", "[moved_files]") {
  const TempDir folder;
  const auto path = folder.path() / "metrics.csv", kept = folder.path() / "metrics-earlier.csv";
  CHECK(newest_version(kept) == kept);
  for (const char* name : {"metrics-earlier.csv", "metrics-earlier-v1.csv", "metrics-earlier-v2.csv"}) {
    CHECK(free_path(path, "-earlier") == folder.path() / name);
    write_file_atomic(folder.path() / name, "");
    CHECK(newest_version(kept) == folder.path() / name);
  }
}

TEST_CASE("what was moved goes back, into folders that are there again as well", "[moved_files]") {
  const TempDir folder;
  const auto run = folder.path() / "run", aside = folder.path() / "aside";
  for (const char* name : {"run.json", "checkpoints/last.pt", "best/model"}) {
    create_folders((run / name).parent_path());
    write_file_atomic(run / name, name);
  }
  for (const char* name : {"run.json", "checkpoints", "best"}) move_file(run / name, aside / name);
  CHECK(entries_of(run).empty());
  create_folders(run / "checkpoints");
  write_file_atomic(run / "checkpoints/mine", "mine");
  move_back(aside, run);
  for (const char* name : {"run.json", "checkpoints/last.pt", "best/model"})
    CHECK(read_file(run / name) == name);
  CHECK(read_file(run / "checkpoints/mine") == "mine");
  CHECK_FALSE(is_there(aside));
}

}  // namespace
}  // namespace ddprun

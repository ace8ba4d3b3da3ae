// A disk that keeps other bytes than it was given, while a checkpoint is written.
#include <sys/syscall.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/train/state/checkpoint.h>
#include "tests/support/catch.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"
#include "tests/worker/ddprun/train/test_run.h"

namespace fs = std::filesystem;
using namespace ddprun;
using namespace ddprun::test;
using namespace ddprun::train;

namespace {

std::atomic<bool> damage_next_fsync = false;

TrainingState large_state(std::int64_t step) {
  TrainingState state;
  auto model = make_dict();
  model.insert("weight", torch::full({10'000}, static_cast<double>(step)));
  state.model = model;
  state.optimizer = make_dict();
  state.step = step;
  return state;
}

}  // namespace

/// The C library's, but for one bit in the middle of the file, once.
extern "C" int fsync(int fd) {
  const auto file = "/proc/self/fd/" + std::to_string(fd);
  std::error_code folder;
  const auto size = fs::file_size(file, folder);
  if (damage_next_fsync && !folder && size > 10'000) {  // not the list of files
    damage_next_fsync = false;
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
    stream.seekg(middle);
    const auto byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(middle);
    stream.put(byte);
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

TEST_CASE("a checkpoint that the disk has damaged replaces none, and none is deleted for it",
          "[checkpoint_writer]") {
  const TempDir dir;
  const auto last = dir.path() / "last.pt", old = dir.path() / "old.pt", next = dir.path() / "next.pt";
  for (const auto& path : {last, next}) {
    CAPTURE(path.string());
    BegunFolder run(dir.path());
    CheckpointWriter writer(run.folder);
    writer.write(large_state(1), {{last, old}});
    writer.flush();
    damage_next_fsync = true;
    writer.write(large_state(2), {{path}, {old}});
    CHECK_THROWS_WITH(writer.flush(), ContainsSubstring(path.string() + ": was not written as it should be, "
                                                                        "and is not replaced"));
    CHECK_FALSE(damage_next_fsync);
    CHECK(read_checkpoint(old).step == 1);
    CHECK(read_checkpoint(last).step == 1);
    CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 4);  // and run.json, checkpoints/
  }
}

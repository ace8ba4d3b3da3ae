#include <ddprun/train/state/run_memory.h>

#include <sys/mman.h>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using namespace ddprun::train;
using ddprun::ddp::ProcessGroup;

TEST_CASE("each rank holds a copy of another one's part", "[part_copies]") {
  test::run_ranks(4, [](const ProcessGroup& group) {
    const UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
    MemoryFile file(fd.get());
    PartCopies copies(group, /*distance=*/1, file);
    copies.exchange({"head", "part of rank " + std::to_string(group.rank())});
    CHECK(file.read()->state == "part of rank " + std::to_string((group.rank() + 3) % 4));
    CHECK_FALSE(copies.failed());
    group.barrier();  // all have theirs
  });
}

TEST_CASE("a rank without memory for its part keeps nobody waiting, however many there are",
          "[part_copies]") {
  const int ranks = GENERATE(3, 4, 5);
  CAPTURE(ranks);
  test::run_ranks(ranks, [](const ProcessGroup& group) {
    const UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
    MemoryFile file(fd.get());
    PartCopies copies(group, /*distance=*/1, file);
    group.barrier();  // all are connected
    if (group.rank() == 0)
      copies.abort();
    else
      copies.exchange({"head", std::string(10'000'000, 'x')});
    CHECK(copies.failed() == (group.rank() != 0));
  });
}

TEST_CASE("parts are kept without copies once a connection for these is lost", "[part_copies]") {
  test::run_ranks(3, [](const ProcessGroup& group) {
    const UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
    RunMemory memory;
    memory.file = std::make_unique<MemoryFile>(fd.get());
    memory.copies = std::make_unique<MemoryFile>(fd.get(), /*begin=*/off_t{1} << 40);
    memory.connect(group, /*local_ranks=*/1);
    group.barrier();
    if (group.rank() == 0) memory.copying->abort();
    for (const std::int64_t step : {1, 2}) {
      memory.snapshot_part({.step = step}, group);
      memory.wait();
      CHECK(memory.ready());
      group.barrier();
    }
    CHECK_FALSE(memory.copying);
    CHECK(memory.file->heads().size() == 2);
  });
}

#include <ddprun/train/state/part_copies.h>

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

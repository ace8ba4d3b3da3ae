#include <ddprun/train/state/run_memory.h>

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/serialize.h>

#include <ddprun/common/files.h>
#include <ddprun/serialize/dict_reader.h>
#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"

namespace ddprun::test {
namespace {

using train::MemoryFile;

UniqueFd memory() {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
  REQUIRE(fd);
  return fd;
}

/// Written and no longer being written.
void put(const UniqueFd& fd, const std::string& head, std::int64_t size, double value) {
  MemoryFile(fd.get()).write(head, at::full({size}, value));
}

/// The head, and whether every element of the state is this value.
void check_holds(const UniqueFd& fd, const std::string& head, std::int64_t size, double value) {
  const auto record = MemoryFile(fd.get()).read();
  REQUIRE(record);
  CHECK(record->head == head);
  const auto state = torch::pickle_load({record->state.begin(), record->state.end()}).toTensor();
  CHECK(state.equal(at::full({size}, value)));
}

/// Damages one byte of every 64 from here on.
void damage(const UniqueFd& fd, off_t from, off_t until) {
  for (off_t at = from; at < until; at += 64) REQUIRE(::pwrite(fd.get(), "?", 1, at) == 1);
}

}  // namespace

TEST_CASE("the newest state is read, whatever the sizes before", "[memory_file]") {
  const auto fd = memory();
  CHECK_FALSE(MemoryFile(fd.get()).read());
  int number = 0;
  for (const std::int64_t size : {1000, 1000, 1000, 50'000, 10, 10, 200'000, 1000}) {
    ++number;
    put(fd, "state " + std::to_string(number), size, number);
    check_holds(fd, "state " + std::to_string(number), size, number);
  }
}

TEST_CASE("a rank that computed wrong numbers leaves no state, but that the run has begun", "[memory_file]") {
  const auto fd = memory();
  train::RunMemory memory;
  memory.folder = "/run";
  memory.begun = true;
  memory.file = std::make_unique<MemoryFile>(fd.get());
  for (const std::int64_t step : {1, 2})
    memory.snapshot({.model = train::make_state(), .optimizer = train::make_state(), .step = step});
  memory.state.emplace();
  REQUIRE(memory.file->heads().size() == 2);
  memory.drop_states();
  CHECK_FALSE(memory.state);
  const auto heads = memory.file->heads();
  REQUIRE(heads.size() == 1);
  CHECK(heads[0] == R"({"begun":true,"branch":0,"folder":"/run","place":[],"run":""})");
}

TEST_CASE("a writer that dies in the middle leaves the state before", "[memory_file]") {
  const auto fd = memory();
  put(fd, "one", 1000, 1);
  const auto end_of_one = ::lseek(fd.get(), 0, SEEK_END);
  put(fd, "two", 1000, 2);
  put(fd, "six", 1000, 3);  // in the place of the first
  // The next is written over the second; its slot was not yet.
  damage(fd, end_of_one, ::lseek(fd.get(), 0, SEEK_END));
  check_holds(fd, "six", 1000, 3);
}

TEST_CASE("a damaged state is none", "[memory_file]") {
  const auto fd = memory();
  put(fd, "one", 1000, 1);
  damage(fd, 4096 + 1000, 4096 + 1064);
  CHECK_FALSE(MemoryFile(fd.get()).read());
}

TEST_CASE("two states are listed, and the one to go on from outlives the next write", "[memory_file]") {
  const auto fd = memory();
  for (const char* head : {"one", "two", "six"}) put(fd, head, 1000, 1);
  CHECK(MemoryFile(fd.get()).heads() == std::vector<std::string>{"six", "two"});
  MemoryFile(fd.get()).forget("six");
  const auto end_of_two = ::lseek(fd.get(), 0, SEEK_END);
  put(fd, "ten", 1000, 2);
  CHECK(MemoryFile(fd.get()).heads() == std::vector<std::string>{"ten", "two"});
  CHECK(::lseek(fd.get(), 0, SEEK_END) == end_of_two);
}

TEST_CASE("states far apart in one file do not touch", "[memory_file]") {
  const auto fd = memory();
  MemoryFile far(fd.get(), off_t{1} << 40);
  far.put({"far", "state"});
  put(fd, "near", 50'000, 1);
  check_holds(fd, "near", 50'000, 1);
  CHECK(far.read()->state == "state");
}

TEST_CASE("a copy that came too late is not written", "[memory_file]") {
  const auto fd = memory();
  put(fd, "one", 1000, 1);
  MemoryFile file(fd.get());
  CHECK_THROWS(file.write("two", at::ones({10}), [] { throw std::runtime_error("spoilt"); }));
  CHECK(file.heads() == std::vector<std::string>{"one"});
}

TEST_CASE("a descriptor that is no file keeps nothing", "[memory_file]") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  MemoryFile file(ends[0]);
  file.write("one", at::ones({3}));
  CHECK_FALSE(file.read());
  CHECK_FALSE(MemoryFile(-1).read());
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a state that cannot be written is reported, and the one before stays", "[memory_file]") {
  const auto fd = memory();
  put(fd, "good", 10, 1);
  bool failed = false;
  MemoryFile file(fd.get());
  {
    const FileSizeLimit limit(100'000);
    file.write("large", at::zeros({1'000'000}), {},
               [&](const MemoryFile::Record* record) { failed = record == nullptr; });
    file.wait();
  }
  CHECK(failed);
  CHECK_FALSE(file.idle());
  file.put({"small", "which would fit"});  // it has given up, and says so once
  check_holds(fd, "good", 10, 1);
}

}  // namespace ddprun::test

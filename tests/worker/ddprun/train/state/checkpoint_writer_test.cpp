#include <ddprun/train/state/checkpoint.h>

#include <ATen/Parallel.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <thread>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/portable_value.h>
#include <ddprun/train/record/run_record.h>
#include "tests/support/catch.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"
#include "tests/worker/ddprun/train/test_run.h"

namespace fs = std::filesystem;
using namespace ddprun;
using namespace ddprun::test;
using namespace ddprun::train;

namespace {

constexpr std::int64_t kTensors = 4, kElements = 10'000;

/// All numbers of it are its step.
TrainingState consistent_state(std::int64_t step) {
  TrainingState state;
  auto model = make_dict();
  for (std::int64_t i = 0; i < kTensors; ++i)
    model.insert("weight" + std::to_string(i), torch::full({kElements}, static_cast<double>(step)));
  state.model = model;
  state.optimizer = make_dict();
  state.step = step;
  return state;
}

bool is_consistent(const TrainingState& state) {
  const auto model = state.model.toGenericDict();
  if (model.size() != kTensors) return false;
  for (const auto& item : model)
    if (!item.value().toTensor().equal(torch::full({kElements}, static_cast<double>(state.step))))
      return false;
  return true;
}

}  // namespace

TEST_CASE("the next step may change the tensors while the state is written", "[checkpoint_writer]") {
  const TempDir dir;
  const auto path = dir.path() / "a.pt";
  BegunFolder run(dir.path());
  CheckpointWriter writer(run.folder);
  const auto state = consistent_state(1);
  writer.write(state, {{path}});
  for (const auto& item : state.model.toGenericDict()) item.value().toTensor().fill_(-1);
  writer.flush();
  CHECK_FALSE(writer.busy());
  CHECK(is_consistent(read_checkpoint(path)));
}

TEST_CASE("one state can go to several files, and a request waits for the one before",
          "[checkpoint_writer]") {
  const TempDir dir;
  BegunFolder run(dir.path());
  CheckpointWriter writer(run.folder);
  for (std::int64_t step = 1; step <= 5; ++step)
    writer.write(consistent_state(step),
                 {{dir.path() / "last.pt", dir.path() / (std::to_string(step) + ".pt")}});
  writer.flush();
  for (std::int64_t step = 1; step <= 5; ++step) {
    const auto state = read_checkpoint(dir.path() / (std::to_string(step) + ".pt"));
    CHECK(state.step == step);
    CHECK(is_consistent(state));
  }
  CHECK(read_checkpoint(dir.path() / "last.pt").step == 5);
}

TEST_CASE("what is to make way is deleted once the new file is there", "[checkpoint_writer]") {
  const TempDir dir;
  const auto old = dir.path() / "old.pt", next = dir.path() / "next.pt";
  BegunFolder run(dir.path());
  CheckpointWriter writer(run.folder);
  writer.write(consistent_state(1), {{old}});
  writer.write(consistent_state(2), {{next}, {old, next, dir.path() / "never.pt"}});
  writer.flush();
  CHECK_FALSE(fs::exists(old));
  CHECK(read_checkpoint(next).step == 2);
}

TEST_CASE("a write that fails deletes nothing, and is told once, at the next call", "[checkpoint_writer]") {
  const TempDir dir;
  const auto old = dir.path() / "old.pt";
  BegunFolder run(dir.path());
  CheckpointWriter writer(run.folder);
  writer.write(consistent_state(1), {{old}});
  writer.write(consistent_state(2), {{dir.path() / "none" / "next.pt"}, {old}});
  CHECK_THROWS_WITH(writer.write(consistent_state(3), {{old}}),
                    ContainsSubstring("next.pt: cannot create: No such file"));
  writer.flush();
  CHECK(read_checkpoint(old).step == 1);
  writer.write(consistent_state(4), {{old}});
  CHECK_NOTHROW(writer.flush());
  CHECK(read_checkpoint(old).step == 4);
}

TEST_CASE("what is to make way for the first file goes before the others are written",
          "[checkpoint_writer]") {
  const TempDir dir;
  const auto old = dir.path() / "old.pt", next = dir.path() / "next.pt";
  BegunFolder run(dir.path());
  CheckpointWriter writer(run.folder);
  writer.write(consistent_state(1), {{old}});
  writer.write(consistent_state(2), {{next, dir.path() / "none" / "last.pt"}, {old}});
  CHECK_THROWS_WITH(writer.flush(), ContainsSubstring("last.pt: cannot create: No such file"));
  CHECK(writer.wrote_first());
  CHECK_FALSE(fs::exists(old));
  CHECK(read_checkpoint(next).step == 2);
  writer.write(consistent_state(3), {{dir.path() / "none" / "next.pt"}, {next}});
  CHECK_THROWS_AS(writer.flush(), IoError);
  CHECK_FALSE(writer.wrote_first());
}

TEST_CASE("a state that no file can hold is refused before anything is written", "[checkpoint_writer]") {
  const TempDir dir;
  BegunFolder run(dir.path());
  CheckpointWriter writer(run.folder);
  auto state = consistent_state(1);
  state.callbacks.emplace("device", c10::Device("cpu"));
  CHECK_THROWS_AS(writer.write(state, {{dir.path() / "a.pt"}}), std::invalid_argument);
  CHECK_NOTHROW(writer.flush());
  CHECK(fs::is_empty(dir.path() / "checkpoints"));
}

TEST_CASE("what is being written is finished when the writer goes", "[checkpoint_writer]") {
  const TempDir dir;
  BegunFolder run(dir.path());
  { CheckpointWriter(run.folder).write(consistent_state(7), {{dir.path() / "a.pt"}}); }
  CHECK(is_consistent(read_checkpoint(dir.path() / "a.pt")));
}

TEST_CASE("a snapshot keeps what is shared shared, and the order in memory", "[checkpoint_writer]") {
  serialize::StagingMemory memory;
  auto root = make_dict();
  const auto base = torch::arange(24, torch::kFloat);
  root.insert("base", base);
  root.insert("slice", base.slice(0, 2, 20));
  root.insert("channels_last", torch::rand({2, 3, 4, 5}).to(torch::MemoryFormat::ChannelsLast));
  root.insert("small view", torch::arange(1000).slice(0, 5, 8));
  root.insert("transposed view", torch::rand({40, 40}).t().slice(0, 0, 3));
  root.insert("expanded", torch::ones({1}).expand({3}));
  root.insert("scalar", torch::tensor(2.5));
  root.insert("no_elements", torch::empty({0, 3}));
  root.insert("flags", torch::tensor({true, false}));
  const auto copy = serialize::stage(root, memory);
  REQUIRE(same(copy, root));
  const auto dict = copy.toGenericDict();
  CHECK(dict.at("slice").toTensor().is_alias_of(dict.at("base").toTensor()));
  CHECK(dict.at("channels_last").toTensor().is_contiguous(torch::MemoryFormat::ChannelsLast));
  base.fill_(-1);
  CHECK(dict.at("base").toTensor()[3].item<float>() == 3);
  CHECK(memory.bytes() < 24 * 4 + 120 * 4 + 3 * 8 + 120 * 4 + 100);
}

TEST_CASE("a snapshot's memory is used again by the next", "[checkpoint_writer]") {
  serialize::StagingMemory memory;
  const auto first = serialize::stage(consistent_state(1).model, memory).toGenericDict();
  const auto* at = first.at("weight3").toTensor().const_data_ptr();
  const auto bytes = memory.bytes();
  CHECK(bytes == kTensors * kElements * sizeof(float));
  const auto second = serialize::stage(consistent_state(2).model, memory).toGenericDict();
  CHECK(second.at("weight3").toTensor().const_data_ptr() == at);
  CHECK(second.at("weight3").toTensor()[0].item<float>() == 2);
  CHECK(memory.bytes() == bytes);
}

namespace {

/// Saves as fast as it can until it is killed: every step to last.pt and to its own file, keeping three.
/// Writes the last step that is surely on disk to the pipe.
void save_for_ever(const fs::path& run, std::int64_t step, int pipe) {
  TestRun record(run, {.resumed_at = step});
  const auto file = [&](std::int64_t of) {
    return record.checkpoint_folder() / (std::to_string(of) + ".pt");
  };
  for (;;) {
    ++step;
    // More than one: whoever was killed before it could delete its own leaves that to the next.
    auto state = consistent_state(step);
    state.identity = record.folder().identity();
    record.save(state, {{record.checkpoint_path(), file(step)},
                        {file(step - 3), file(step - 4), file(step - 5), file(step - 6)}});
    record.add_metrics({{"step", static_cast<double>(step)}});
    const std::int64_t done = step - 1;  // save() waited for it
    if (::write(pipe, &done, sizeof done) != sizeof done) return;
  }
}

/// The last number in the pipe, once there are two; -1 if the writer is gone.
std::int64_t wait_for_progress(int pipe) {
  std::int64_t step = -1;
  for (int i = 0; i < 2; ++i)
    if (::read(pipe, &step, sizeof step) != sizeof step) return -1;
  return step;
}

std::int64_t rest_of(int pipe, std::int64_t step) {
  while (::read(pipe, &step, sizeof step) == sizeof step) continue;
  return step;
}

}  // namespace

TEST_CASE("a run that is killed at any moment while saving leaves its newest state whole, 200 times",
          "[checkpoint_writer]") {
  at::set_num_threads(1);  // threads do not outlive a fork
  const TempDir dir;
  fs::create_directory(dir.path() / "checkpoints");
  std::mt19937 random(7);
  std::uniform_int_distribution<int> delay_us(0, 20'000);
  std::int64_t step = 0;
  for (int kill = 0; kill < 200; ++kill) {
    CAPTURE(kill, step);
    int pipe[2];
    REQUIRE(::pipe(pipe) == 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(pipe[0]);
      try {
        save_for_ever(dir.path(), step, pipe[1]);
      } catch (const std::exception& error) {
        std::cerr << error.what() << std::endl;
      }
      ::_exit(1);
    }
    ::close(pipe[1]);
    REQUIRE(wait_for_progress(pipe[0]) > step - 1);
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us(random)));  // the moment to be killed at
    REQUIRE(::kill(pid, SIGKILL) == 0);
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    REQUIRE(WIFSIGNALED(status));
    const auto sure = rest_of(pipe[0], step);
    ::close(pipe[0]);

    const auto found = find_resume(dir.path());
    REQUIRE(found.found());
    REQUIRE(found.skipped.empty());
    REQUIRE(found.state.step >= sure);
    REQUIRE(is_consistent(found.state));
    REQUIRE(is_consistent(read_checkpoint(dir.path() / "checkpoints/last.pt")));
    step = found.state.step;
  }
  CHECK(step >= 200);
  const TestRun record(dir.path(), {.resumed_at = step});
  CHECK(state_files(RunFolder(dir.path())).size() <= 6);
  for (const auto& entry : fs::directory_iterator(dir.path() / "checkpoints"))
    CHECK_FALSE(entry.path().filename().string().starts_with("."));
}

TEST_CASE("the stall of a background write against a synchronous one", "[.][stall]") {
  const char* folder = std::getenv("DDPRUN_STALL_DIR");
  const TempDir dir;
  const fs::path path = (folder != nullptr ? fs::path(folder) : dir.path()) / "stall.pt";
  TrainingState state;
  auto model = make_dict();
  for (int i = 0; i < 100; ++i) model.insert(std::to_string(i), torch::rand({1 << 18}));  // 1 MiB each
  state.model = model;
  state.optimizer = make_dict();
  const auto ms = [](auto work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  };
  BegunFolder run(dir.path());
  CheckpointWriter writer(run.folder);
  for (int i = 0; i < 5; ++i) {
    const double synchronous = ms([&] { save_checkpoint(path, state); });
    const double stalled = ms([&] { writer.write(state, {{path}}); });
    const double background = ms([&] { writer.flush(); });
    std::cout << "synchronous " << synchronous << " ms, stalled " << stalled << " ms, then " << background
              << " ms in the background\n";
  }
  fs::remove(path);
}

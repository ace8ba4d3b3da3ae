// Ranks that do not come to a collective, as real processes: what the others' errors say.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/linear.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "common/errors.h"
#include "common/files.h"
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "worker/ddp/collectives.h"
#include "worker/ddp/distributed_data_parallel.h"
#include "worker/ddp/flight_dump.h"
#include "worker/ddp/process_group.h"
#include "worker/ddp/record_collectives.h"
#include "worker/ddp/watchdog.h"
#include "worker/flight_report.h"

using namespace ddprun;
using namespace std::chrono_literals;
using ddp::DistributedDataParallel;
using ddp::ProcessGroup;

namespace {

/// Generous where a rank waits for a healthy one, short where it waits for one that never comes.
constexpr auto kTimeout = 3s;

/// A rank waits, without a sleep, until others are done.
struct Done {
  Done() { ensure(::pipe2(ends, O_CLOEXEC) == 0, "a pipe can be made"); }
  void tell() { ensure(::write(ends[1], "", 1) == 1, "told"); }
  void wait_for(int ranks) {
    char byte;
    for (int i = 0; i < ranks; ++i) ensure(::read(ends[0], &byte, 1) == 1, "a rank is done");
  }
  int ends[2];
};

/// What a rank needs for its message beyond the timeout: the others' answers, and a busy machine.
constexpr auto kToTell = ddp::Watchdog::Options{}.answer_within + 10s;

/// Runs body on each rank of a group with a short timeout; the message of what it throws, or "". It must come
/// within the timeout.
std::string failure_of(const test::HeldPort& port, int rank, int size,
                       const std::function<void(const ProcessGroup&)>& body) {
  auto group =
      ProcessGroup::connect(test::rank_env(port, rank, size), {.timeout = kTimeout, .connect_timeout = 60s});
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    body(group);
    return "";
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    message = error.what();
  }
  ensure(std::chrono::steady_clock::now() - begin < kTimeout + kToTell, "the error comes within the timeout");
  return message;
}

void expect_text(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts)
    if (message.find(part) == std::string::npos)
      throw std::runtime_error("expected '" + part + "' in: " + message);
}

void all_reduce(const ProcessGroup& group, std::int64_t elements) {
  std::vector<torch::Tensor> tensors = {torch::ones({elements})};
  group.handle()->allreduce(tensors)->wait();
}

}  // namespace

TEST_CASE("a rank that never enters a collective is named, with its position", "[flight][fault]") {
  const int size = GENERATE(2, 3);
  const test::HeldPort port;
  const TempDir dir;
  ::setenv("DDPRUN_FLIGHT_DIR", dir.path().c_str(), 1);
  Done others;
  test::fork_ranks(size, [&](int rank) {
    const auto message = failure_of(port, rank, size, [&](const ProcessGroup& group) {
      all_reduce(group, 7);
      if (rank == 1)
        others.wait_for(size - 1);
      else
        all_reduce(group, 4096);
    });
    if (rank != 1) others.tell();
    if (rank != 1)
      expect_text(message, {"all_reduce #2 of 4096 float: rank 1 did not come within ",
                            ": it is at #1 (all_reduce of 7 float, completed)"});
  });
  ::unsetenv("DDPRUN_FLIGHT_DIR");
  for (int rank = 0; rank < size; ++rank) {
    CAPTURE(rank);
    const auto path = dir.path() / ("flight_" + std::to_string(rank) + ".json");
    const auto dump = ddp::parse_flight_dump(read_file(path));
    CHECK(dump.rank == rank);
    CHECK(dump.world_size == size);
    CHECK(dump.collectives.back().sequence == (rank == 1 ? 1 : 2));
    CHECK(dump.collectives.front().state == ddp::CollectiveState::kCompleted);
    CHECK(dump.collectives.back().elements == (rank == 1 ? 7 : 4096));
  }
  std::string arguments[] = {"flight", dir.path()};
  char* argv[] = {arguments[0].data(), arguments[1].data()};
  CHECK(run_flight_report(2, argv) == 1);
}

TEST_CASE("a rank that calls something else is named, on both sides", "[flight][fault]") {
  const test::HeldPort port;
  test::fork_ranks(2, [&](int rank) {
    const auto message = failure_of(port, rank, 2, [&](const ProcessGroup& group) {
      all_reduce(group, 7);
      std::vector<torch::Tensor> tensors = {torch::ones({3}, torch::kInt64)};
      if (rank == 1)
        group.handle()->broadcast(tensors)->wait();
      else
        all_reduce(group, 5);
    });
    if (rank == 0)
      expect_text(message, {"all_reduce #2 of 5 float: rank 1 called broadcast of 3 long from rank 0 while "
                            "this rank made that call"});
    else
      expect_text(message, {"broadcast #2 of 3 long from rank 0: rank 0 called all_reduce of 5 float"});
  });
}

TEST_CASE("a rank that comes with another shape is named, also where Gloo would end the process",
          "[flight][fault]") {
  const test::HeldPort port;
  test::fork_ranks(2, [&](int rank) {
    static std::vector<std::string> expected;
    expected =
        rank == 0
            ? std::vector<std::string>{"all_reduce #2 of 5000 float: rank 1 ", " all_reduce of 300 float"}
            : std::vector<std::string>{"all_reduce #2 of 300 float: rank 0 ", " all_reduce of 5000 float"};
    std::set_terminate([] {
      try {
        std::rethrow_exception(ddp::explained_failure(std::current_exception()));
      } catch (const std::exception& error) {
        const std::string message = error.what();
        for (const auto& part : expected)
          if (message.find(part) == std::string::npos) {
            std::fprintf(stderr, "expected '%s' in: %s\n", part.c_str(), message.c_str());
            ::_exit(3);
          }
        ::_exit(0);
      }
    });
    const auto message = failure_of(port, rank, 2, [&](const ProcessGroup& group) {
      all_reduce(group, 7);
      all_reduce(group, rank == 0 ? 5000 : 300);
    });
    expect_text(message, expected);
  });
}

TEST_CASE("a rank that makes another number of collectives is named", "[flight][fault]") {
  const test::HeldPort port;
  test::fork_ranks(2, [&](int rank) {
    const auto message = failure_of(port, rank, 2, [&](const ProcessGroup& group) {
      for (int step = 0; step < 3 + rank; ++step) all_reduce(group, 16);
      std::vector<torch::Tensor> tensors = {torch::ones({2})};
      group.handle()->broadcast(tensors)->wait();
    });
    expect_text(message, rank == 0 ? std::vector<std::string>{"broadcast #4 of 2 float",
                                                              "rank 1 called all_reduce of 16 float"}
                                   : std::vector<std::string>{"all_reduce #4 of 16 float",
                                                              "rank 0 called broadcast of 2 float"});
  });
}

TEST_CASE("a rank that makes another number of steps is named", "[flight][fault]") {
  const test::HeldPort port;
  test::fork_ranks(2, [&](int rank) {
    const auto message = failure_of(port, rank, 2, [&](const ProcessGroup& group) {
      torch::nn::Linear model(5, 1);
      DistributedDataParallel ddp(*model, group);
      for (int step = 0; step < 3 + rank; ++step)
        ddp.forward([&] { return model->forward(torch::ones({2, 5})).sum(); }).backward();
      ddp::broadcast_from_rank_0(group, {torch::ones({2})});
    });
    expect_text(
        message,
        rank == 0
            ? std::vector<std::string>{"broadcast #", "rank 1 called all_reduce of 6 float (bucket 0)"}
            : std::vector<std::string>{"all_reduce #", " of 6 float (bucket 0): rank 0 called broadcast"});
  });
}

namespace {

/// Trains until rank 1 calls `end`, inside its third backward; the others' message.
void die_in_backward(int size, const std::function<void()>& end, const std::vector<std::string>& expected) {
  const test::HeldPort port;
  std::string died;
  try {
    test::fork_ranks(size, [&](int rank) {
      const auto message = failure_of(port, rank, size, [&](const ProcessGroup& group) {
        torch::nn::Linear first(64, 64), second(64, 1);
        struct Both : torch::nn::Module {};
        Both model;
        model.register_module("first", first);
        model.register_module("second", second);
        DistributedDataParallel ddp(model, group, {.bucket_bytes = 1000, .first_bucket_bytes = 100});
        for (int step = 0; step < 6; ++step) {
          auto hidden = torch::relu(first->forward(torch::ones({2, 64})));
          if (rank == 1 && step == 3) hidden.register_hook([&](torch::Tensor) { end(); });
          ddp.forward([&] { return second->forward(hidden).sum(); }).backward();
        }
      });
      if (rank != 1) expect_text(message, expected);
      if (rank == 1 && !message.empty()) throw std::runtime_error(message);
    });
  } catch (const std::runtime_error& error) {
    died = error.what();
  }
  CAPTURE(died);
  CHECK(died.rfind("rank 1", 0) == 0);
  CHECK(died.find('\n') == std::string::npos);  // nobody else failed
}

}  // namespace

TEST_CASE("a rank killed inside backward is named by the others", "[flight][fault]") {
  const int size = GENERATE(2, 3);
  die_in_backward(size, [] { ::kill(::getpid(), SIGKILL); },
                  {"all_reduce #", "bucket ", "rank 1 has ended or does not answer"});
}

TEST_CASE("a rank that throws inside backward is named by the others", "[flight][fault]") {
  die_in_backward(2, [] { throw std::runtime_error("no luck"); },
                  {"all_reduce #", "bucket ", "rank 1 has ended or does not answer"});
}

TEST_CASE("what a rank announces before it ends is told by the others", "[flight][fault]") {
  die_in_backward(2,
                  [] {
                    ddp::announce_failure("the disk is full");
                    throw std::runtime_error("the disk is full");
                  },
                  {"all_reduce #", "bucket ", "rank 1 has failed: the disk is full"});
}

TEST_CASE("that the store is gone with rank 0 is said", "[flight][fault]") {
  const test::HeldPort port;
  std::string died;
  try {
    test::fork_ranks(2, [&](int rank) {
      const auto message = failure_of(port, rank, 2, [&](const ProcessGroup& group) {
        all_reduce(group, 7);
        if (rank == 0) ::kill(::getpid(), SIGKILL);
        all_reduce(group, 9);
      });
      expect_text(message, {"all_reduce #2 of 9 float: rank 0, which keeps the store, has ended"});
    });
  } catch (const std::runtime_error& error) {
    died = error.what();
  }
  CHECK(died == "rank 0: signal 9 (SIGKILL)");
}

TEST_CASE("a module that differs is named at construction, long before a timeout", "[flight][fault]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    torch::nn::Linear model(4, group.rank() == 1 ? 3 : 2);
    std::string message;
    try {
      DistributedDataParallel ddp(*model, group);
    } catch (const std::invalid_argument& error) {
      message = error.what();
    }
    expect_text(message, {"weight", "not so rank 1"});
  });
}

TEST_CASE("futures and results pass through the recorder", "[flight]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    std::vector<torch::Tensor> tensors = {torch::full({3}, group.rank() + 1.0)};
    auto work = group.handle()->allreduce(tensors);
    auto future = work->getFuture();
    future->wait();
    ensure(future->value().toTensorVector()[0].eq(3).all().item<bool>(), "the sum is in the future");
    ensure(work->wait() && work->isCompleted() && work->isSuccess(), "the work is done");
    ensure(work->result()[0].eq(3).all().item<bool>(), "the sum is the work's result");
    std::vector<std::vector<torch::Tensor>> gathered = {{torch::zeros({3}), torch::zeros({3})}};
    std::vector<torch::Tensor> own = {torch::full({3}, group.rank() + 0.0)};
    group.handle()->allgather(gathered, own)->wait();
    ensure(gathered[0][1].eq(1).all().item<bool>(), "gathered");
    std::vector<torch::Tensor> message = {torch::full({2}, group.rank())};
    (group.rank() == 0 ? group.handle()->send(message, 1, 5) : group.handle()->recv(message, 0, 5))->wait();
    ensure(message[0].eq(0).all().item<bool>(), "sent");
    const auto records = ddp::flight_recorder().records(2);
    ensure(records[0].op == "all_gather" && records[0].state == ddp::CollectiveState::kCompleted, "recorded");
    ensure(records[1].sequence == 0 && records[1].state == ddp::CollectiveState::kCompleted, "recorded");
  });
}

TEST_CASE("buckets of backward are labelled in order", "[flight]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    torch::nn::Linear model(64, 64);
    DistributedDataParallel ddp(*model, group, {.bucket_bytes = 1000, .first_bucket_bytes = 100});
    for (int step = 0; step < 3; ++step)
      ddp.forward([&] { return model->forward(torch::ones({2, 64})).sum(); }).backward();
    const auto buckets = ddp.statistics().bucket_bytes;
    ensure(buckets.size() == 2, "weight and bias in a bucket each");
    const auto records = ddp::flight_recorder().records(2);
    for (std::size_t i = 0; i < 2; ++i) {
      ensure(records[i].bucket == static_cast<int>(i), "the bucket's number");
      ensure(records[i].elements * 4 == buckets[i], "the bucket's size");
      ensure(records[i].state == ddp::CollectiveState::kCompleted, "completed after backward");
    }
  });
}

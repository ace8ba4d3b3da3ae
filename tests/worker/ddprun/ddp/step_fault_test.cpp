// Ranks that do not come to a training step, as real processes: what the others' errors say.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/process_group.h>
#include <ddprun/group/spawn.h>
#include <ddprun/run/run_worker.h>
#include <ddprun/sharding/fully_sharded.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/rank_faults.h"

using namespace ddprun;
using ddp::DistributedDataParallel;
using ddp::ProcessGroup;
using test::expect_text;
using test::failure_of;

TEST_CASE("a rank that does not come to a fully sharded step is named, with its position",
          "[flight][fault]") {
  const int size = GENERATE(2, 3);
  const HeldPort port;
  const TempDir dir;
  ::setenv("DDPRUN_FLIGHT_DIR", dir.path().c_str(), 1);
  test::Done others;
  test::fork_ranks(size, [&](int rank) {
    const auto message = failure_of(port, rank, size, [&](const ProcessGroup& group) {
      torch::nn::Linear model(6, 6);
      ddp::FullyShardedDataParallel fsdp(*model, group);
      const auto step = [&] {
        fsdp.forward([&] { return model->forward(torch::ones({2, 6})).sum(); }).backward();
      };
      step();
      if (rank == 1)
        others.wait_for(size - 1);
      else
        step();
    });
    if (rank == 1) return;
    others.tell();
    expect_text(message,
                {"parameters weight to bias could not be gathered", "all_gather_into_tensor #",
                 " float: rank 1 did not arrive within ", ": it is at #", "(reduce_scatter_tensor of "});
  });
  ::unsetenv("DDPRUN_FLIGHT_DIR");
  CHECK(test::flight_report_of(dir.path()) == 1);
}

TEST_CASE("a rank that makes another number of steps is named", "[flight][fault]") {
  const test::SumsInMemory sums(GENERATE(true, false));
  const HeldPort port;
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
  const test::SumsInMemory sums(GENERATE(true, false));
  const HeldPort port;
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

TEST_CASE("an error on one rank alone ends the job at once, with that rank named", "[flight][fault]") {
  const std::string where = GENERATE("samples", "static graph in a join", "backward");
  std::string message;
  const auto begin = std::chrono::steady_clock::now();
  try {
    spawn(3, [&](const WorkerEnv& env) {
      ::signal(SIGTERM, SIG_DFL);  // and not Catch2's handler
      // As in a worker: what nobody catches ends the process, without teardown.
      std::set_terminate([] {
        const auto failure = describe_failure(ddp::explained_failure(std::current_exception()));
        std::fprintf(stderr, "%s\n", failure.message.c_str());
        ::_exit(failure.message.find("at #") == std::string::npos ? 3 : 4);
      });
      std::thread([&] {
        const auto group = ProcessGroup::connect(env, {.timeout = std::chrono::minutes(10)});
        torch::nn::Linear first(64, 64), second(64, 1);
        torch::nn::Sequential model(first, second);
        DistributedDataParallel ddp(*model, group,
                                    {.bucket_bytes = 1000,
                                     .first_bucket_bytes = 100,
                                     .static_graph = where == "static graph in a join"});
        auto join = ddp.join({});
        const bool wrong = env.rank == 1;
        for (int step = 0; step < 3 && !(wrong && where == "static graph in a join"); ++step) {
          const auto samples = wrong && step == 2 && where == "samples" ? 0 : 2;
          auto hidden = first->forward(torch::ones({2, 64}));
          const bool in_backward = step == 2 && where == "backward";
          if (wrong && in_backward)
            hidden.register_hook([&](torch::Tensor) { throw std::runtime_error("no luck"); });
          const auto loss = ddp.forward([&] { return second->forward(hidden).sum(); }, samples);
          if (!wrong && in_backward)  // the other's first bucket waits
            loss.register_hook([](torch::Tensor) { std::this_thread::sleep_for(std::chrono::seconds(1)); });
          loss.backward();
        }
        join.finish();
      }).join();
    });
  } catch (const std::exception& error) {
    message = error.what();
  }
  CAPTURE(where);
  CHECK(message == "rank 1: exit code 3");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(3));  // not the explanation's 4
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
    expect_text(message, {"weight", "unlike rank 1"});
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

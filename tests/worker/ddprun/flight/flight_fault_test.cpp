// Ranks that do not come to a collective, as real processes: what the others' errors say.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <tuple>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/flight/flight_recorder.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/process_group.h>
#include <ddprun/run/run_worker.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/rank_faults.h"

using namespace ddprun;
using ddp::ProcessGroup;
using test::expect_text;
using test::failure_of;

namespace {

void all_reduce(const ProcessGroup& group, std::int64_t elements) {
  std::vector<torch::Tensor> tensors = {torch::ones({elements})};
  group.handle()->allreduce(tensors)->wait();
}

}  // namespace

TEST_CASE("a rank that never enters a collective is named, with its position", "[flight][fault]") {
  const auto how = GENERATE(table<int, bool>({{2, true}, {3, true}, {3, false}}));
  const int size = std::get<0>(how);
  const test::SumsInMemory sums(std::get<1>(how));
  const HeldPort port;
  const TempDir dir;
  ::setenv("DDPRUN_FLIGHT_DIR", dir.path().c_str(), 1);
  test::Done others;
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
      expect_text(message, {"all_reduce #2 of 4096 float: rank 1 did not arrive within ",
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
  CHECK(test::flight_report_of(dir.path()) == 1);
}

TEST_CASE("what a rank's own program throws while a collective is under way stays what it is",
          "[flight][fault]") {
  const test::SumsInMemory sums(GENERATE(true, false));
  const HeldPort port;
  test::Done thrown;
  test::fork_ranks(2, [&](int rank) {
    const auto message = failure_of(port, rank, 2, [&](const ProcessGroup& group) {
      if (rank == 1) thrown.wait_for(1);
      std::vector<torch::Tensor> tensors = {torch::ones({9})};
      const auto work = group.handle()->allreduce(tensors);
      if (rank == 0) {
        const auto explained =
            ddp::explained_failure(std::make_exception_ptr(UsageError("--epochs: expected a number")));
        const auto failure = describe_failure(explained);
        ensure(failure.message == "--epochs: expected a number" && failure.exit_code == 2,
               failure.message.c_str());
        thrown.tell();
      }
      work->wait();
    });
    ensure(message.empty(), message.c_str());
  });
}

TEST_CASE("a rank that calls something else is named, on both sides", "[flight][fault]") {
  const test::SumsInMemory sums(GENERATE(true, false));
  const HeldPort port;
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
  const bool in_memory = GENERATE(true, false);
  const test::SumsInMemory sums(in_memory);
  const HeldPort port;
  static const test::Done* ended_by_gloo;
  const test::Done ended;
  ended_by_gloo = &ended;
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
        ended_by_gloo->tell();
        ::_exit(0);
      }
    });
    const auto message = failure_of(port, rank, 2, [&](const ProcessGroup& group) {
      all_reduce(group, 7);
      all_reduce(group, rank == 0 ? 5000 : 300);
    });
    expect_text(message, expected);
  });
  CHECK(ended.is_told() == !in_memory);
}

TEST_CASE("a rank that makes another number of collectives is named", "[flight][fault]") {
  const test::SumsInMemory sums(GENERATE(true, false));
  const HeldPort port;
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

TEST_CASE("that the store is gone with rank 0 is said", "[flight][fault]") {
  const test::SumsInMemory sums(GENERATE(true, false));
  const HeldPort port;
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

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // LibTorch 2.15 has other names for them, too
TEST_CASE("a recorded reduce-scatter over Gloo ends with its sum, in all three forms", "[flight]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    auto& gloo = *group.handle();
    auto input = torch::arange(6, torch::kFloat32) + group.rank();
    const auto expected =
        (2 * torch::arange(6, torch::kFloat32) + 1).chunk(2)[static_cast<std::size_t>(group.rank())];
    const auto expect = [&](const torch::Tensor& output, const char* form) {
      ddprun::ensure(output.equal(expected), form);
    };
    auto base = torch::zeros({3}), coalesced = torch::zeros({3}), listed = torch::zeros({3});
    gloo._reduce_scatter_base(base, input, {})->wait();
    expect(base, "_reduce_scatter_base");
    std::vector<torch::Tensor> outputs = {coalesced}, inputs = {input};
    gloo.reduce_scatter_tensor_coalesced(outputs, inputs, {})->wait();
    expect(coalesced, "reduce_scatter_tensor_coalesced");
    std::vector<torch::Tensor> output = {listed};
    std::vector<std::vector<torch::Tensor>> lists = {input.chunk(2)};
    gloo.reduce_scatter(output, lists, {})->wait();
    expect(listed, "reduce_scatter");
    for (const auto& call : ddp::flight_recorder().records())
      ddprun::ensure(!call.op.starts_with("reduce_scatter") || !call.pending(), "noted as completed");
  });
}
#pragma GCC diagnostic pop

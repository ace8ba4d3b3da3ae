#include <ddprun/group/shared_sum.h>

#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <torch/utils.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/group/collectives.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using namespace std::chrono_literals;
using test::ContainsSubstring;

namespace {

bool shares_memory() { return read_file("/proc/self/maps").find("/memfd:ddprun") != std::string::npos; }

/// The tensor that a rank brings, which every rank can make.
at::Tensor brought(int rank, int call, std::int64_t elements, at::ScalarType dtype) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 * call + rank));
  return at::rand({elements}, at::TensorOptions(dtype));
}

/// In the order of the ranks.
at::Tensor sum_of(int ranks, int call, std::int64_t elements, at::ScalarType dtype) {
  auto sum = brought(0, call, elements, dtype) + brought(1, call, elements, dtype);
  for (int rank = 2; rank < ranks; ++rank) sum += brought(rank, call, elements, dtype);
  return sum;
}

struct Pending {
  std::vector<at::Tensor> tensors;
  c10::intrusive_ptr<c10d::Work> work;
};

Pending all_reduce(const ddp::ProcessGroup& group, at::Tensor tensor) {
  Pending pending{{std::move(tensor)}, {}};
  pending.work = group.handle()->allreduce(pending.tensors);
  return pending;
}

std::string failure_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a sum through shared memory is that of the ranks in their order, for all sizes",
          "[local_all_reduce]") {
  const int ranks = GENERATE(2, 3, 5);
  const std::int64_t piece = 1 << 20;
  test::run_ranks(ranks, [&](const ddp::ProcessGroup& group) {
    ensure(shares_memory(), "the ranks share memory");
    int call = 0;
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const auto whole = piece / static_cast<std::int64_t>(c10::elementSize(dtype));
      for (const auto elements : {std::int64_t{1}, std::int64_t{7}, std::int64_t{100'003}, whole - 1, whole,
                                  whole + 1, 2 * whole + 12'345}) {
        ++call;
        auto pending = all_reduce(group, brought(group.rank(), call, elements, dtype));
        pending.work->wait();
        ensure(at::equal(pending.tensors[0], sum_of(ranks, call, elements, dtype)),
               ("sum of " + std::to_string(elements) + " " + c10::toString(dtype)).c_str());
      }
    }
  });
}

TEST_CASE("many sums under way end in their order, however late a rank comes", "[local_all_reduce]") {
  test::run_ranks(3, [](const ddp::ProcessGroup& group) {
    for (int round = 0; round < 30; ++round) {
      // Each in turn lags behind the others, who have called all before it begins.
      if (group.rank() == round % 3) std::this_thread::sleep_for(5ms);
      std::vector<Pending> all;
      for (int call = 0; call < 10; ++call)
        all.push_back(
            all_reduce(group, brought(group.rank(), 10 * round + call, 1 + 40'000 * call, at::kFloat)));
      all.back().work->wait();
      for (int call = 0; call < 10; ++call) {
        const auto& pending = all[static_cast<std::size_t>(call)];
        ensure(pending.work->isCompleted(), "the calls before it are finished too");
        ensure(at::equal(pending.tensors[0], sum_of(3, 10 * round + call, 1 + 40'000 * call, at::kFloat)),
               "the sum");
      }
    }
  });
}

TEST_CASE("a callback may call for another sum", "[local_all_reduce]") {
  test::run_ranks(2, [](const ddp::ProcessGroup& group) {
    for (int i = 0; i < 50; ++i) {
      if (group.rank() == i % 2) std::this_thread::sleep_for(1ms);
      auto first = all_reduce(group, at::ones({1000}));
      Pending second;
      first.work->getFuture()
          ->then(
              [&](c10::ivalue::Future&) {
                second = all_reduce(group, at::ones({2000}));
                return c10::IValue();
              },
              c10::NoneType::get())
          ->wait();
      second.work->wait();
      ensure(at::equal(second.tensors[0], 2 * at::ones({2000})), "the second sum");
    }
  });
}

TEST_CASE("a callback may wait for another sum", "[local_all_reduce]") {
  test::run_ranks(2, [](const ddp::ProcessGroup& group) {
    for (int i = 0; i < 50; ++i) {
      if (group.rank() == i % 2) std::this_thread::sleep_for(2ms);  // the other one has its callback by then
      auto first = all_reduce(group, at::ones({1000}));
      auto between = all_reduce(group, at::ones({10}));
      first.work->getFuture()->addCallback([&](c10::ivalue::Future&) {
        auto second = all_reduce(group, at::ones({2000}));
        second.work->wait();
        ensure(between.work->isCompleted(), "the calls before it are told first");
        ensure(at::equal(second.tensors[0], 2 * at::ones({2000})), "the second sum");
        ensure(ddp::all_reduce_sum(group, {3})[0] == 6, "a sum that waits by itself");
      });
      first.work->wait();
    }
  });
}

TEST_CASE("a barrier in a callback is an error", "[local_all_reduce]") {
  test::run_ranks(2, [](const ddp::ProcessGroup& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(50ms);  // rank 0 has its callback by then
    std::string text = "not possible in a callback";
    auto sum = all_reduce(group, at::ones({1000}));
    if (group.rank() == 0)
      sum.work->getFuture()->addCallback(
          [&](c10::ivalue::Future&) { text = failure_of([&] { group.handle()->barrier()->wait(); }); });
    sum.work->wait();
    ensure(text.find("not possible in a callback") != std::string::npos, text.c_str());
  });
}

TEST_CASE("a callback that waits for a sum of an ended rank gets its error", "[local_all_reduce]") {
  const HeldPort port;
  CHECK_THROWS_WITH(
      test::fork_ranks(2,
                       [&](int rank) {
                         auto group =
                             ddp::ProcessGroup::connect(test::rank_env(port, rank, 2), {.timeout = 10min});
                         if (rank == 1) std::this_thread::sleep_for(50ms);  // rank 0 has its callback by then
                         auto first = all_reduce(group, at::ones({1000}));
                         std::string text;
                         first.work->getFuture()->addCallback([&](c10::ivalue::Future&) {
                           if (rank == 1) ::kill(::getpid(), SIGKILL);
                           auto second = all_reduce(group, at::ones({10}));
                           text = failure_of([&] { second.work->wait(); });
                         });
                         first.work->wait();
                         ensure(text.find("rank 1") != std::string::npos, text.c_str());
                       }),
      "rank 1: signal 9 (SIGKILL)");
}

TEST_CASE("another tensor is an error that says so on every rank, and the next sum is right",
          "[local_all_reduce]") {
  const int ranks = GENERATE(3, 5);
  const auto elements = GENERATE(std::int64_t{3}, std::int64_t{900'000});
  test::run_ranks(ranks, [&](const ddp::ProcessGroup& group) {
    const auto elements_of = [&](int rank) { return elements + (rank == 1 ? 1 : 0); };
    const auto dtype_of = [](int rank) { return rank == 2 ? at::kDouble : at::kFloat; };
    const int own = group.rank(), first_other = own == 1 || own == 2 ? 0 : 1;
    const auto text = failure_of([&] {
      all_reduce(group, at::ones({elements_of(own)}, at::TensorOptions(dtype_of(own)))).work->wait();
    });
    for (const int rank : {first_other, own}) {
      const auto expected = " of " + std::to_string(elements_of(rank)) + " " + c10::toString(dtype_of(rank)) +
                            " from rank " + std::to_string(rank);
      ensure(text.find(expected) != std::string::npos, ("expected '" + expected + "' in: " + text).c_str());
    }
    ensure(ddp::all_reduce_sum(group, {1})[0] == ranks, "the next sum");
  });
}

TEST_CASE("tensors with other strides or without elements go through memory as well", "[local_all_reduce]") {
  const int ranks = GENERATE(3, 5);
  test::run_ranks(ranks, [&](const ddp::ProcessGroup& group) {
    torch::manual_seed(1);
    const auto matrix = at::rand({600, 700});
    auto transposed = all_reduce(group, group.rank() == 0 ? matrix.clone() : matrix.t().contiguous().t());
    transposed.work->wait();
    ensure(at::allclose(transposed.tensors[0], ranks * matrix), "the sum");
    all_reduce(group, at::ones({0})).work->wait();
    const auto text =
        failure_of([&] { all_reduce(group, at::ones({group.rank() == 1 ? 0 : 3})).work->wait(); });
    ensure(text.find(" of 0 Float from rank 1") != std::string::npos,
           ("rank 1's tensor, got " + text).c_str());
    ensure(ddp::all_reduce_sum(group, {1})[0] == ranks, "the next sum");
  });
}

TEST_CASE("a sum does not pair with the one after another rank's maximum", "[local_all_reduce]") {
  const HeldPort port;
  test::fork_ranks(2, [&](int rank) {
    auto group = ddp::ProcessGroup::connect(test::rank_env(port, rank, 2), {.timeout = 10min});
    std::vector<at::Tensor> ones = {at::ones({1})};
    c10d::AllreduceOptions options;
    if (rank == 1) options.reduceOp = c10d::ReduceOp::MAX;
    const auto first = group.handle()->allreduce(ones, options);
    const auto text = failure_of([&] {
      const auto second = all_reduce(group, at::ones({1}));
      (rank == 0 ? first : second.work)->wait();
    });
    ensure(!text.empty(), "an error");
    group.handle()->abort();
  });
}

TEST_CASE("close() waits for a sum that nobody has waited for", "[local_all_reduce]") {
  const HeldPort port;
  test::fork_ranks(3, [&](int rank) {
    auto group = ddp::ProcessGroup::connect(test::rank_env(port, rank, 3), {});
    auto pending = all_reduce(group, at::ones({20'000'000}));
    group.close();
    ensure(pending.work->isCompleted() && at::equal(pending.tensors[0], 3 * at::ones({20'000'000})),
           "the sum is there");
  });
}

TEST_CASE("a rank that is killed fails the sums of the others at once", "[local_all_reduce]") {
  const int ranks = GENERATE(3, 5);
  const HeldPort port;
  CHECK_THROWS_WITH(test::fork_ranks(ranks,
                                     [&](int rank) {
                                       auto group = ddp::ProcessGroup::connect(
                                           test::rank_env(port, rank, ranks), {.timeout = 10min});
                                       ddp::all_reduce_sum(group, {1});
                                       if (rank == 2) ::kill(::getpid(), SIGKILL);
                                       all_reduce(group, at::ones({500'000})).work->wait();
                                     }),
                    ContainsSubstring("rank 2: signal 9") && ContainsSubstring("rank 0: ") &&
                        ContainsSubstring("rank 1: "));
}

TEST_CASE("a rank that does not come in time is an error after the timeout", "[local_all_reduce]") {
  const HeldPort port;
  test::fork_ranks(2, [&](int rank) {
    auto group = ddp::ProcessGroup::connect(test::rank_env(port, rank, 2), {.timeout = 10min});
    if (rank == 0) {
      std::vector<at::Tensor> tensors = {at::ones({3})};
      c10d::AllreduceOptions options;
      options.timeout = 100ms;
      const auto text = failure_of([&] { group.handle()->allreduce(tensors, options)->wait(); });
      ensure(text.find("rank 1") != std::string::npos, ("expected rank 1 to be named, got " + text).c_str());
    }
    group.barrier();
    const auto later = failure_of([&] { ddp::all_reduce_sum(group, {1}); });
    ensure(!later.empty(), "the group is of no more use, on both ranks");
  });
}

TEST_CASE("memory is shared only where all want it and the job is on one node", "[local_all_reduce]") {
  const std::string which = GENERATE("option", "variable of rank 0", "nodes", "subgroup");
  const HeldPort port;
  test::fork_ranks(2, [&](int rank) {
    auto env = test::rank_env(port, rank, 2);
    if (which == "nodes") env.local_world_size = 1;
    if (which == "variable of rank 0" && rank == 0) ::setenv("DDPRUN_SHARED_MEMORY", "0", 1);
    auto group = ddp::ProcessGroup::connect(env, {.shared_memory = which != "option" || rank != 1});
    ensure(shares_memory() == (which == "subgroup"), which.c_str());
    if (which == "subgroup") group = *group.new_group({0, 1});
    ensure(ddp::all_reduce_sum(group, {1})[0] == 2, "the sum");
    group.close();
  });
}

TEST_CASE("DDPRUN_SHARED_MEMORY that is neither 0 nor 1 is refused", "[local_all_reduce]") {
  ::setenv("DDPRUN_SHARED_MEMORY", "yes", 1);
  const HeldPort port;
  CHECK_THROWS_WITH(ddp::ProcessGroup::connect(test::rank_env(port, 0, 2), {}),
                    "DDPRUN_SHARED_MEMORY: expected 0 or 1, got 'yes'");
  ::unsetenv("DDPRUN_SHARED_MEMORY");
}

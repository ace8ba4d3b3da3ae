// Groups of ranks: how they meet, collectives, subgroups.
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>

#include <torch/nn/modules/linear.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/backends.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/process_group.h>
#include <ddprun/group/spawn.h>
#include <ddprun/group/store.h>
#include "tests/support/catch.h"
#include "tests/support/fake_gpus.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using namespace std::chrono_literals;
using ddp::ProcessGroup;
using ddprun::test::ContainsSubstring;

namespace {

int entries(const char* folder) {
  return static_cast<int>(
      std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
}

/// What a process has open and running.
struct Held {
  int files = entries("/proc/self/fd");
  int threads = entries("/proc/self/task");
  bool operator==(const Held&) const = default;
};

}  // namespace

TEST_CASE("a single process opens no file, socket or thread until its handle is asked for", "[groups]") {
  const HeldPort port;
  auto env = test::rank_env(port, 0, 1);  // as a launcher starts it, too
  if (GENERATE(false, true)) env = WorkerEnv{};
  const Held before;
  auto group = ProcessGroup::connect(env, {});
  CHECK(ddp::all_reduce_sum(group, {2, 3}) == std::vector<double>{2, 3});
  CHECK(ddp::all_reduce_max(group, {2}) == std::vector<double>{2});
  CHECK(ddp::any_rank_true(group, true));
  CHECK(ddp::all_gather(group, "text") == std::vector<std::string>{"text"});
  CHECK(ddp::broadcast_from_rank_0(group, "text") == "text");
  group.barrier();
  const auto same = group.new_group({0});
  REQUIRE(same);
  CHECK(same->size() == 1);
  CHECK(Held() == before);
  auto tensors = std::vector<torch::Tensor>{torch::ones({1})};
  group.handle()->allreduce(tensors)->wait();
  CHECK(Held().threads > before.threads);
  group.close();
  CHECK(Held().threads == before.threads);
}

TEST_CASE("a process that may connect again keeps Gloo's socket and thread", "[groups]") {
  test::fork_ranks(1, [](int) {
    const auto connect_and_fail = [] {
      const auto group = ProcessGroup::connect(WorkerEnv{}, {.give_up = [] { return false; }});
      auto tensors = std::vector<torch::Tensor>{torch::ones({1})};
      group.handle()->allreduce(tensors)->wait();
    };
    const Held before;
    connect_and_fail();
    const Held kept;
    ensure(kept.threads == before.threads + 1, "Gloo's thread is kept");
    connect_and_fail();
    ensure(Held() == kept, "and used again");
    const auto of_interface = [] { return ddp::make_gloo_device(WorkerEnv{}, "lo", /*keep=*/true); };
    ensure(of_interface() != of_interface(), "an interface's address may change");
  });
}

TEST_CASE("after a group that could not connect, Gloo's socket is a new one", "[groups]") {
  const HeldPort port;
  test::fork_ranks(2, [&](int rank) {
    const auto env = test::rank_env(port, rank, 2);
    const auto group = ProcessGroup::connect(env, {.give_up = [] { return false; }});
    const auto device = ddp::make_gloo_device(env, "", /*keep=*/true);
    ensure(ddp::make_gloo_device(env, "", /*keep=*/true) == device, "it is kept");
    if (rank == 1) {
      ddp::all_gather(group, "0, 1");  // as if it called new_group(), before it is lost
    } else {
      bool failed = false;
      try {
        (void)group.new_group({0, 1}, 300ms);
      } catch (const std::exception&) {
        failed = true;
      }
      ensure(failed, "the other rank does not connect");
      ensure(ddp::make_gloo_device(env, "", /*keep=*/true) != device, "it is another one");
    }
    group.barrier(60s);
  });
}

TEST_CASE("collectives give every rank the same", "[groups]") {
  test::run_ranks(3, [](const ProcessGroup& group) {
    const double rank = group.rank();
    ensure(ddp::all_reduce_max(group, {rank, -rank}) == std::vector<double>{2, 0}, "maxima");
    ensure(ddp::all_reduce_min(group, {rank, -rank}) == std::vector<double>{0, -2}, "minima");
    ensure(ddp::any_rank_true(group, rank == 1) && !ddp::any_rank_true(group, false), "any rank");
    ensure(ddp::all_gather(group, rank + 5) == std::vector<double>{5, 6, 7}, "every rank's value");
    const std::string zero(1, '\0');
    const std::vector<std::string> texts = {"", "one", zero + "two" + zero};
    ensure(ddp::all_gather(group, texts[static_cast<std::size_t>(rank)]) == texts, "every rank's text");
    ensure(ddp::all_gather(group, "") == std::vector<std::string>(3), "empty texts");
    const std::string long_text(100'000, 'x');
    ensure(ddp::broadcast_from_rank_0(group, rank == 0 ? long_text : "other") == long_text, "rank 0's text");
    group.barrier();
    group.barrier();
  });
}

TEST_CASE("ranks meet through a file, and the last removes it", "[groups]") {
  const TempDir dir;
  const auto file = dir.path() / "store";
  spawn(2, [&](const WorkerEnv& env) {
    auto group = ProcessGroup::connect(env, {.init_method = "file://" + file.string()});
    ensure(ddp::all_reduce_sum(group, {1})[0] == 2, "the sum over ranks");
    group.barrier();
    group.close();
  });
  CHECK_FALSE(std::filesystem::exists(file));
}

TEST_CASE("ranks meet again after their group's end, and beside other groups", "[groups]") {
  const TempDir dir;
  const std::string where = GENERATE("the launcher's socket", "an agent's store", "a file");
  CAPTURE(where);
  const HeldPort port;
  test::fork_ranks(3, [&](int rank) {
    auto env = test::rank_env(port, rank, 3);
    ProcessGroup::Options options = {.timeout = 60s, .connect_timeout = 60s};
    if (where == "a file") options.init_method = "file://" + (dir.path() / "store").string();
    std::optional<ddp::StorePtr> agent;
    if (where == "an agent's store") {
      if (rank == 0) agent = ddp::make_store(env, "env://", 0, 60s);
      env.store_fd.reset();
      env.use_agent_store = true;
    }
    const auto connect = [&] { return ProcessGroup::connect(env, options); };
    const auto sums_to = [](const ProcessGroup& group, double expected) {
      ensure(ddp::all_reduce_sum(group, {1})[0] == expected, "the sum over ranks");
    };
    for (int again = 0; again < 5; ++again) {
      auto group = connect();
      sums_to(group, 3);
      group.close();
    }
    auto first = connect(), second = connect();
    const auto pair = first.new_group({0, 1});
    sums_to(second, 3);
    sums_to(first, 3);
    first.close();
    sums_to(second, 3);
    std::optional third = connect();
    if (pair) sums_to(*pair, 2);
    second.close();
    third->barrier();
    third.reset();  // not closed
    auto last = connect();
    sums_to(last, 3);
    ensure(ddp::all_gather(last, rank) == std::vector<double>{0, 1, 2}, "every rank's value");
    last.barrier();
    last.close();
  });
  CHECK(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("an init method that is none is refused", "[groups]") {
  for (const std::string url : {"", "file://", "file://relative/path", "file:///folder/", "tcp://127.0.0.1:1",
                                "env://x", "file:///tmp/store?rank=0"}) {
    CAPTURE(url);
    CHECK_THROWS_AS(ProcessGroup::connect(WorkerEnv{}, {.init_method = url}), UsageError);
    CHECK_THROWS_WITH(ProcessGroup::connect(WorkerEnv{}, {.init_method = url}),
                      ContainsSubstring("init_method: expected env:// or file:///PATH") &&
                          ContainsSubstring("got '" + url + "'"));
  }
  const HeldPort port;
  CHECK_THROWS_WITH(
      ProcessGroup::connect(test::rank_env(port, 1, 2), {.init_method = "file:///no/such/folder/store"}),
      ContainsSubstring("/no/such/folder: init_method: expected a folder that all ranks can write to"));
}

TEST_CASE("a network interface of the options is used before that of the environment", "[groups]") {
  ::setenv("GLOO_SOCKET_IFNAME", "nosuch0", 1);
  CHECK_THROWS_WITH(ProcessGroup::connect(WorkerEnv{}, {.interface = "nosuch1"}),
                    "interface: expected a network interface of this host, got 'nosuch1'");
  spawn(2, [](const WorkerEnv& env) {
    auto group = ProcessGroup::connect(env, {.interface = "lo"});
    ensure(ddp::all_reduce_sum(group, {1})[0] == 2, "the sum over ranks");
    group.close();
  });
  ::unsetenv("GLOO_SOCKET_IFNAME");
}

TEST_CASE("subgroups take part of the ranks, several at once and within each other", "[groups]") {
  test::run_ranks(3, [](const ProcessGroup& group) {
    const auto ends = group.new_group({2, 0});
    const auto alone = group.new_group({1});
    const auto all = group.new_group({0, 1, 2}, 5s);
    ensure(ends.has_value() == (group.rank() != 1) && alone.has_value() == (group.rank() == 1), "membership");
    ensure(all && ddp::all_reduce_sum(*all, {1})[0] == 3, "a sum over all");
    if (!ends) return;
    ensure(ends->world_ranks() == std::vector<int>{0, 2} && ends->rank() == group.rank() / 2,
           "ranks in order");
    ensure(ddp::all_reduce_sum(*ends, {group.rank() + 1.0})[0] == 4, "a sum over two");
    ends->barrier(60s);
    const auto last = ends->new_group({1});
    ensure(last.has_value() == (group.rank() == 2), "a subgroup of a subgroup");
    ensure(!last || last->world_ranks() == std::vector<int>{2}, "its ranks in the world");
  });
}

TEST_CASE("a subgroup that cannot be is refused on every rank", "[groups]") {
  const auto refused = [](const ProcessGroup& group, const std::vector<int>& ranks,
                          const std::string& message) {
    try {
      (void)group.new_group(ranks);
    } catch (const std::invalid_argument& error) {
      ensure(error.what() == "new_group: expected " + message, error.what());
      return;
    }
    throw std::runtime_error("not refused");
  };
  test::run_ranks(2, [&](const ProcessGroup& group) {
    refused(group, {}, "at least one rank, got none");
    refused(group, {0, 2}, "different ranks from 0 to 1, got 0, 2");
    refused(group, {1, 1}, "different ranks from 0 to 1, got 1, 1");
    refused(group, {-1}, "different ranks from 0 to 1, got -1");
    refused(group, {group.rank()}, "the same ranks from every rank, got 0 on rank 0 and 1 on rank 1");
  });
}

TEST_CASE(
    "over NCCL a subgroup is split from its parent's connections, which takes all of the parent's ranks",
    "[groups]") {
  test::on_fake_gpus(3, [](const ProcessGroup& world) {
    const auto backend = [](const ProcessGroup& group, torch::DeviceType type) {
      return group.handle()->getBackend(type);
    };
    ensure(backend(world, torch::kCUDA)->getBackendName() == "nccl", "NCCL");
    const auto pair = world.new_group({0, 2}, 5s);
    const auto alone = world.new_group({1});
    const auto all = world.new_group({0, 1, 2});
    const auto rest = all->new_group({1, 2});
    std::vector<torch::Tensor> sums = {torch::ones({1}, world.device())};
    if (pair) pair->handle()->allreduce(sums)->wait();
    ensure(sums[0].item<double>() == (world.rank() == 1 ? 1 : 2), "a sum over the subgroup's ranks");
    ensure(!alone || alone->size() == 1, "a group of one");
    const std::string expected =
        std::string("0: ranks 0 1 2, 600 s\n") +
        (world.rank() == 1 ? "0 is split into no group\n" : "0 is split into 0.1\n0.1: ranks 0 2, 5 s\n") +
        "0 is split into 0.3\n0.3: ranks 0 1 2, 600 s\n" +
        (world.rank() == 0 ? "0.3 is split into no group\n"
                           : "0.3 is split into 0.3.1\n0.3.1: ranks 1 2, 600 s\n");
    const auto made = ddp::cuda_plugin().dump_nccl_trace();
    ensure(made == expected, made.c_str());
    // Python's defaults: NCCL's is above.
    ensure(backend(world, torch::kCPU)->getBackendOptions()->timeout == 30min, "Gloo's default");
    ensure(!pair || backend(*pair, torch::kCPU)->getBackendOptions()->timeout == 5s, "Gloo's own");
  });
}

TEST_CASE("ranks share a GPU over NCCL if NCCL takes them for ranks of different hosts", "[groups]") {
  test::make_fake_gpus(1);
  for (const auto wanted : {ddp::BackendChoice::kAuto, ddp::BackendChoice::kNccl})
    spawn(2, [&](const WorkerEnv& env) {
      ::setenv("NCCL_HOSTID", std::to_string(env.rank).c_str(), 1);
      auto group = ProcessGroup::connect(env, {.device = ddp::DeviceChoice::kCuda, .backend = wanted});
      ensure(group.backend() == (wanted == ddp::BackendChoice::kNccl ? "nccl" : "gloo"), "the backend");
      group.close();
    });
  const auto on_one_host = [](const WorkerEnv& env) {
    ProcessGroup::connect(env, {.device = ddp::DeviceChoice::kCuda, .backend = ddp::BackendChoice::kNccl});
  };
  CHECK_THROWS_WITH(spawn(2, on_one_host), ContainsSubstring("expected a separate GPU for every rank"));
}

TEST_CASE("DDP over a subgroup averages over its ranks alone", "[groups]") {
  test::run_ranks(3, [](const ProcessGroup& world) {
    const auto group = world.new_group({0, 2});
    if (!group) return;
    torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
    ddp::DistributedDataParallel ddp(*model, *group);
    const auto x = torch::full({1, 1}, world.rank() + 1.0);
    ddp.forward([&] { return model->forward(x).sum(); }).backward();
    ensure(model->weight.grad().item<double>() == 2, "the mean of 1 and 3");
  });
}

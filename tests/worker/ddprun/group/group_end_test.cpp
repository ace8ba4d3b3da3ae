// What becomes of a group when a rank does not come, fails or goes.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <thread>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/ddp/sync_batch_norm.h>
#include <ddprun/flight/flight_recorder.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/flight/watchdog.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/process_group.h>
#include <ddprun/group/spawn.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/sharding/zero_optimizer.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using namespace std::chrono_literals;
using ddp::ProcessGroup;
using ddprun::test::ContainsSubstring;

namespace {

constexpr auto kPatience = 60s;  // reached only when something is wrong

/// A message from one rank to another; made before the fork.
class Signal {
 public:
  Signal() { ensure(::pipe(ends_) == 0, "a pipe can be made"); }
  void send() const { ensure(::write(ends_[1], "", 1) == 1, "a signal is sent"); }
  void wait() const {
    char byte;
    ensure(::read(ends_[0], &byte, 1) == 1, "a signal is received");
  }

 private:
  int ends_[2];
};

std::vector<int> missing_at(const ProcessGroup& group, std::chrono::milliseconds timeout) {
  try {
    group.barrier(timeout);
    return {};
  } catch (const ddp::MissingRanks& error) {
    ensure(std::string(error.what()).rfind("barrier: expected 3 ranks within ", 0) == 0, error.what());
    return error.ranks;
  }
}

/// Whatever holds a group keeps what it needs of it, and not the object that it was given.
void train_without_its_group(ProcessGroup group) {
  struct Net : torch::nn::Module {
    Net() {
      register_module("linear", linear);
      register_module("norm", norm);
    }
    torch::Tensor loss() { return norm->forward(linear->forward(torch::rand({3, 4}))).pow(2).sum(); }
    torch::nn::Linear linear{4, 4};
    ddp::SyncBatchNorm norm{4};
  };
  Net replicated;
  torch::nn::Linear sharded(4, 4);
  ddp::convert_sync_batchnorm(replicated, group);
  ddp::DistributedDataParallel parallel(replicated, group);
  parallel.register_comm_hook(ddp::powersgd_hook(
      std::make_shared<ddp::PowerSgd>(group, ddp::PowerSgd::Options{.start_iteration = 2})));
  ddp::ZeroOptimizer optimizer(
      {torch::optim::OptimizerParamGroup(replicated.parameters())},
      [](auto groups) { return std::make_unique<torch::optim::SGD>(std::move(groups), 0.1); }, group);
  ddp::FullyShardedDataParallel fsdp(*sharded, group);
  std::optional moved(std::move(group));
  for (int step = 0; step < 4; ++step) {
    if (step == 1) moved.reset();
    parallel.forward([&] { return replicated.loss(); }).backward();
    optimizer.step();
    fsdp.forward([&] { return sharded->forward(torch::ones({2, 4})).sum(); }).backward();
    ensure(fsdp.clip_grad_norm(1.0).item<double>() > 0, "a gradient of the shards");
  }
}

}  // namespace

TEST_CASE("who does not come to connect is named on every rank that does", "[group_end]") {
  const HeldPort port;
  test::fork_ranks(3, [&](int rank) {
    if (rank == 1) return;
    std::string message;
    try {
      ProcessGroup::connect(test::rank_env(port, rank, 3), {.connect_timeout = 1500ms});
    } catch (const ddp::MissingRanks& error) {
      message = error.what();
    }
    const auto expected = "connecting at 127.0.0.1:" + std::to_string(port.port) +
                          ": expected 3 ranks within 1.5 s, rank 1 did not arrive";
    if (message != expected) throw std::runtime_error("got: " + message);
  });
}

TEST_CASE("a barrier names the missing ranks on all that came, and one that comes late is told too",
          "[group_end]") {
  const Signal failed;
  test::run_ranks(3, [&](const ProcessGroup& group) {
    if (group.rank() != 1) {
      ensure(missing_at(group, 300ms) == std::vector<int>{1}, "rank 1 is missed");
      if (group.rank() == 0) failed.send();
    } else {
      failed.wait();
      ensure(missing_at(group, kPatience) == std::vector<int>{1}, "the late rank learns that it was missed");
    }
    group.barrier(kPatience);  // and the group goes on
    ensure(ddp::all_reduce_sum(group, {1})[0] == 3, "the sum over ranks");
  });
}

TEST_CASE("a rank that may give up looks often at first whether the others came, then less often",
          "[group_end]") {
  const HeldPort port;
  const Signal done;
  test::fork_ranks(2, [&](int rank) {
    int looks = 0, early = 0;
    auto begin = std::chrono::steady_clock::now();
    const auto look = [&] {
      ++looks;
      if (std::chrono::steady_clock::now() - begin < 30ms) ++early;
      return false;
    };
    const auto group = ProcessGroup::connect(test::rank_env(port, rank, 2), {.give_up = look});
    if (rank == 1) return done.wait();
    int most_early = 0, looks_then = 0;
    for (int tries = 0; tries < 20 && most_early < 7; ++tries) {  // other processes may lengthen the pauses
      looks = early = 0;
      begin = std::chrono::steady_clock::now();
      try {
        group.barrier(500ms);
      } catch (const ddp::MissingRanks&) {
      }
      if (early > most_early) most_early = early, looks_then = looks;
    }
    done.send();
    ensure(most_early >= 7, "pauses of 10 ms allow four within 30 ms");
    ensure(looks_then <= 150, "pauses of a millisecond allow over 300 in half a second");
  });
}

TEST_CASE("groups, subgroups and DDP end in any order, closed or not", "[group_end]") {
  const auto step = [](ddp::DistributedDataParallel& ddp, torch::nn::Linear& model) {
    model->zero_grad();
    ddp.forward([&] { return model->forward(torch::ones({2, 4})).sum(); }).backward();
  };
  const auto connect = [](const WorkerEnv& env) { return std::optional(ProcessGroup::connect(env, {})); };
  SECTION("the group before its DDP and its subgroup") {
    spawn(2, [&](const WorkerEnv& env) {
      auto group = connect(env);
      auto subgroup = group->new_group({0, 1});
      torch::nn::Linear model(4, 4);
      std::optional<ddp::DistributedDataParallel> ddp(std::in_place, *model, *group);
      step(*ddp, model);
      group.reset();
      step(*ddp, model);
      ensure(ddp::all_reduce_sum(*subgroup, {1})[0] == 2, "the subgroup lives on");
      subgroup->close();
    });
  }
  SECTION("the group, moved elsewhere, before all that was made with it") {
    spawn(2, [&](const WorkerEnv& env) { train_without_its_group(ProcessGroup::connect(env, {})); });
  }
  SECTION("the subgroup before the group") {
    spawn(2, [&](const WorkerEnv& env) {
      auto group = connect(env);
      {
        torch::nn::Linear model(4, 4);
        auto subgroup = group->new_group({0, 1});
        ddp::DistributedDataParallel ddp(*model, *subgroup);
        subgroup.reset();
        step(ddp, model);
      }
      ensure(ddp::all_reduce_sum(*group, {1})[0] == 2, "the group lives on");
      group->close();
    });
  }
  SECTION("the group closed, the DDP still there") {
    spawn(2, [&](const WorkerEnv& env) {
      auto group = connect(env);
      torch::nn::Linear model(4, 4);
      ddp::DistributedDataParallel ddp(*model, *group);
      step(ddp, model);
      group->close();
    });
  }
  SECTION("in static storage, not closed") {
    spawn(2, [&](const WorkerEnv& env) {
      static std::optional<ProcessGroup> kept;
      static std::optional<ddp::DistributedDataParallel> ddp;
      static torch::nn::Linear model(4, 4);
      kept = connect(env);
      ddp.emplace(*model, *kept);
      step(*ddp, model);
      kept->barrier();
      std::exit(0);
    });
  }
  SECTION("in static storage, and used when other statics are gone") {
    const TempDir dir;
    spawn(2, [&](const WorkerEnv& env) {
      static struct Last {
        ~Last() { ddp::dump_flight("the program ends"); }
        std::optional<ProcessGroup> group;
      } last;
      last.group = connect(env);
      ddp::set_flight_folder(dir.path());
      ensure(ddp::all_reduce_sum(*last.group, {1})[0] == 2, "the sum");
      ::mallopt(M_PERTURB, 0xa5);  // freed memory does not look as before
      std::exit(0);
    });
    for (const std::string rank : {"0", "1"}) {
      const auto dump = ddp::parse_flight_dump(read_file(dir.path() / ("flight_" + rank + ".json")));
      CHECK(dump.collectives.back().op == "all_reduce");
    }
  }
}

TEST_CASE("a pending collective fails at once when its group is destroyed, or aborted", "[group_end]") {
  const bool abort = GENERATE(false, true);
  const HeldPort port;
  const Signal gone;
  test::fork_ranks(2, [&](int rank) {
    std::optional group = ProcessGroup::connect(test::rank_env(port, rank, 2), {.timeout = 10min});
    group->barrier();  // a rank that goes while the other still connects fails its connect()
    if (rank == 1) {
      gone.wait();
      return;
    }
    std::vector<torch::Tensor> tensors = {torch::ones({3})};
    const auto work = group->handle()->allreduce(tensors);
    if (abort)
      group->handle()->abort();
    else
      group.reset();
    bool failed = false;
    try {
      work->wait();
    } catch (const std::exception&) {
      failed = true;
    }
    gone.send();
    ensure(failed, "a collective that the other rank did not join fails");
  });
}

TEST_CASE("a rank leaves in the middle of a message when its group is aborted", "[group_end]") {
  const auto how = GENERATE("wait", "future", "point to point");
  const bool receives = GENERATE(false, true);  // the rank that leaves
  CAPTURE(how, receives);
  const HeldPort port;
  test::fork_ranks(2, [&](int rank) {
    std::optional group = ProcessGroup::connect(test::rank_env(port, rank, 2), {.timeout = 10min});
    ddp::set_failure_is_known([](auto) { return true; });  // asks nobody for the reason
    std::vector<torch::Tensor> tensors = {torch::ones({40'000'000})};
    group->barrier();
    const int source = receives ? 1 : 0;
    const auto& handle = group->handle();
    const auto work = std::string(how) != "point to point" ? handle->broadcast(tensors, {.rootRank = source})
                      : rank == source                     ? handle->send(tensors, 1 - rank, 0)
                                                           : handle->recv(tensors, 1 - rank, 0);
    if (rank == 1) {
      std::this_thread::sleep_for(20ms);  // far less than the message takes
      ::_exit(0);
    }
    std::jthread aborts([&] {
      while (!group->has_lost_a_rank()) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(50ms);
      handle->abort();
    });
    const auto begin = std::chrono::steady_clock::now();
    bool failed = false;
    try {
      if (std::string(how) == "future")
        work->getFuture()->waitAndThrow();
      else
        work->wait();
    } catch (const std::exception&) {
      failed = true;
    }
    aborts.join();
    group.reset();
    ensure(failed, "the message did not get through");
    ensure(std::chrono::steady_clock::now() - begin < 20s, "neither the wait nor the group's end lasts");
  });
}

TEST_CASE("an exception ends a rank at once, and the others' collectives fail", "[group_end]") {
  const HeldPort port;
  const Signal ready;
  CHECK_THROWS_WITH(test::fork_ranks(2,
                                     [&](int rank) {
                                       auto group = ProcessGroup::connect(test::rank_env(port, rank, 2),
                                                                          {.timeout = 10min});
                                       if (rank == 0) throw std::runtime_error("of rank 0");
                                       ddp::all_reduce_sum(group, {1});
                                     }),
                    ContainsSubstring("rank 0: of rank 0") && ContainsSubstring("rank 1: "));
}

#include <ddprun/group/rounds.h>

#include <sys/socket.h>

#include <thread>

#include <torch/torch.h>

#include <ddprun/common/files.h>
#include <ddprun/common/recovery.h>
#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include "tests/support/catch.h"

using namespace ddprun;
using ddp::RoundOver;

namespace {

/// A rank of a job that ddprun recovers in place, and ddprun's end of its socket.
struct Rank {
  Rank() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    ddprun.reset(ends[0]);
    own.reset(ends[1]);
    env.round_fd = own.get();
    rounds.emplace(env);
  }
  void lose_another() const {
    REQUIRE(send_notice(ddprun.get(), {.round = 1, .master_addr = "127.0.0.1", .lost = {1}}, -1));
  }
  UniqueFd ddprun, own;
  WorkerEnv env;
  std::optional<ddp::Rounds> rounds;
};

}  // namespace

TEST_CASE("a rank leaves its backward pass as soon as another one is lost", "[recover]") {
  const Rank rank;
  const auto weight = torch::ones({8}, torch::requires_grad());
  const auto loss = [&] {
    auto value = weight;
    for (int i = 0; i < 100; ++i) value = value * 1.01;
    return value.sum();
  };
  int passes = 0;
  weight.register_hook([&](const torch::Tensor&) {
    if (++passes == 2) rank.lose_another();
  });
  const auto endless = [&] {
    const ddp::LeaveAtOnce at_once;
    for (;;) loss().backward();
  };
  CHECK_THROWS_AS(endless(), RoundOver);
  CHECK(passes >= 2);
  const auto outside = torch::ones({8}) * 2;  // an optimizer's step ends, for instance
  CHECK(outside.sum().item<int>() == 16);
  CHECK_THROWS_AS(ddp::Rounds::check(), RoundOver);
}

TEST_CASE("a rank that another one is lost to leaves its pass only before its last gradient", "[recover]") {
  const bool last = GENERATE(true, false);
  CAPTURE(last);
  const Rank rank;
  ::setenv("DDPRUN_WORLD_OF_ONE", "1", 1);
  const auto group = ddp::ProcessGroup::connect(rank.env, {});
  torch::nn::Sequential model(torch::nn::Linear(4, 32), torch::nn::Linear(32, 32), torch::nn::Linear(32, 4));
  ddp::DistributedDataParallel parallel(*model, group, {.bucket_bytes = 64});
  ::unsetenv("DDPRUN_WORLD_OF_ONE");
  int buckets = -1;  // one in the first step, then several
  parallel.register_comm_hook(ddp::make_comm_hook([&](ddp::Bucket& bucket) {
    ++buckets;
    if (buckets > 0 && (last ? bucket.isLast() : buckets == 1)) {
      rank.lose_another();
      try {
        for (;;) ddp::Rounds::check();
      } catch (const RoundOver&) {
      }
    }
    torch::zeros({1});
    return ddp::all_reduce_async(group.handle(), bucket.getBufferRef());
  }));
  const auto pass = [&] {
    const ddp::LeaveAtOnce at_once;
    parallel.forward([&] { return model->forward(torch::ones({2, 4})).sum(); }).backward();
  };
  pass();
  if (last)
    CHECK_NOTHROW(pass());
  else
    CHECK_THROWS_AS(pass(), RoundOver);
  CHECK((buckets > 1) == last);
}

TEST_CASE("only the thread that asks for it leaves", "[recover]") {
  const Rank rank;
  rank.lose_another();
  const ddp::LeaveAtOnce at_once;
  CHECK_THROWS_AS(
      [] {
        for (;;) torch::zeros({1});
      }(),
      RoundOver);
  std::int64_t sum = 0;
  std::thread([&] { sum = torch::ones({8}).sum().item<std::int64_t>(); }).join();
  CHECK(sum == 8);
}

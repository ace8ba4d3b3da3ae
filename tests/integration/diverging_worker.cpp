// A program on ddprun::run, for own_program_jobs_test.cpp, whose ranks do not do the same, as the argument
// says: "return" and the like go wrong on rank 1 at the sixth step of ten, "slow" only takes its time. With
// "twice" they do the same, in two calls of ddprun::run.
#include <ddprun/group/collectives.h>
#include <ddprun/run/context.h>
#include <ddprun/run/distributed.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

namespace {

using ddprun::Context;

void step(const std::string& how, Context& ctx, const ddprun::ddp::ProcessGroup* pair,
          ddprun::DistributedDataParallel<torch::nn::LinearImpl>& model) {
  if (how.starts_with("barrier"))
    ctx.barrier();
  else if (how == "return from a subgroup" && pair != nullptr)
    ddprun::ddp::all_reduce_sum(*pair, {1});
  else if (how == "fewer batches")
    model(torch::ones({2, 3})).sum().backward();
  else
    ctx.all_reduce(1.0);
}

/// False: rank 1 returns here.
bool goes_on(const std::string& how, Context& ctx) {
  if (how.ends_with("exit")) std::exit(0);
  if (how.ends_with("skip")) ctx.broadcast(torch::ones({3}), 1);
  if (how == "slow") std::this_thread::sleep_for(std::chrono::seconds(6));
  return how.ends_with("skip") || how == "slow";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string how = argv[1];
  for (int run = 1; how == "twice" && run <= 2; ++run) {
    const int code = ddprun::run(
        [&](Context& ctx) {
          std::cout << "rank " + std::to_string(ctx.rank()) + ", run " + std::to_string(run) +
                           ": sum over ranks " +
                           std::to_string(std::lround(ctx.all_reduce(run * (ctx.rank() + 1.0)))) + "\n"
                    << std::flush;
        },
        {.device = ddprun::ddp::DeviceChoice::kCpu});
    if (code != 0 || run == 2) return code;
  }
  return ddprun::run(
      [&](Context& ctx) {
        ddprun::DistributedDataParallel<torch::nn::LinearImpl> model(ctx, torch::nn::LinearImpl(3, 1));
        const auto pair = ctx.group().new_group({0, 1});
        for (int i = 0; i < 10; ++i) {
          if (i == 5 && ctx.rank() == 1 && !goes_on(how, ctx)) return;
          step(how, ctx, pair ? &*pair : nullptr, model);
        }
        if (how == "slow" && ctx.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(6));
        auto group = ctx.group();
        group.close();
        if (ctx.is_main()) std::this_thread::sleep_for(std::chrono::seconds(2));  // saves
        std::cout << "rank " << ctx.rank() << " is done" << std::endl;
      },
      {.device = ddprun::ddp::DeviceChoice::kCpu});
}

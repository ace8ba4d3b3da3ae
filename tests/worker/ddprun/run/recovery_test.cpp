// A user's own program when another rank is lost (ddprun --recover=rank): what Checkpoint and DataLoader
// keep.
#include <ddprun/run/checkpoint.h>
#include <ddprun/run/context.h>
#include <ddprun/run/data_loader.h>
#include <ddprun/run/distributed.h>
#include <ddprun/run/recovery.h>

#include <sys/socket.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/recovery.h>
#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/train/optim/lr_schedule.h>
#include <ddprun/train/optim/optimization.h>
#include <ddprun/train/optim/optimizer.h>
#include <ddprun/train/state/run_memory.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;

namespace {

/// A collective fails, as another rank is lost.
struct LostRank : std::runtime_error {
  LostRank() : std::runtime_error("lost") {}
};

/// The only rank of a job, with ddprun's end of its socket. It exchanges gradients with itself.
struct RecoveringRank {
  RecoveringRank() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    ddprun.reset(ends[0]);
    own.reset(ends[1]);
    env.round_fd = own.get();
    recovery.emplace(env);
    ::setenv("DDPRUN_WORLD_OF_ONE", "1", 1);
    group = ddp::ProcessGroup::connect(env, {});
  }
  ~RecoveringRank() { ::unsetenv("DDPRUN_WORLD_OF_ONE"); }

  /// As ddprun::run() does. returns  the number of rounds
  int run(const std::function<void(Context&)>& train) {
    for (int rounds = 1;; ++rounds) {
      recovery->round = {};
      Context ctx(env, *group, &*recovery);
      try {
        train(ctx);
        return rounds;
      } catch (const ddp::RoundOver&) {
        REQUIRE(recovery->rounds.next());
      } catch (const LostRank&) {
      }
      ++env.round;
    }
  }

  /// The next check() throws.
  void begin_round() const {
    REQUIRE(send_notice(ddprun.get(), {.round = env.round + 1, .master_addr = "127.0.0.1", .lost = {1}}, -1));
    try {
      for (;;) ddp::Rounds::check();
    } catch (const ddp::RoundOver&) {
    }
  }

  UniqueFd ddprun, own;
  WorkerEnv env;
  std::optional<Recovery> recovery;
  std::optional<ddp::ProcessGroup> group;
};

struct SmallNet : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input) {
    return torch::dropout(torch::tanh(layer(input)), 0.2, is_training());
  }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(3, 4))};
};

/// Twelve examples, as a set or as a stream.
struct TwelveExamples {
  std::int64_t size() const { return 12; }
  std::pair<torch::Tensor, torch::Tensor> get(std::int64_t index) const {
    const auto value = static_cast<float>(index) / 12;
    return {torch::full({3}, value), torch::full({4}, value * value)};
  }
};
struct TwelveInTurn {
  auto stream(const Context&, std::int64_t) const {
    return [i = std::int64_t{0}]() mutable -> std::optional<std::pair<torch::Tensor, torch::Tensor>> {
      if (i == 12) return std::nullopt;
      return TwelveExamples().get(i++);
    };
  }
};

std::unique_ptr<torch::optim::Optimizer> make(const std::string& kind,
                                              std::vector<torch::Tensor> parameters) {
  using train::OptimizerKind;
  const double lr = kind.starts_with("tiny steps") ? 1e-30 : 0.1;
  if (kind == "tiny steps without momentum")
    return std::make_unique<ddprun::Optimizer<torch::optim::SGD>>(parameters, lr);
  if (kind == "unseen") return std::make_unique<torch::optim::SGD>(parameters, lr);
  if (kind == "Adam") return std::make_unique<ddprun::Optimizer<torch::optim::Adam>>(parameters, lr);
  if (kind == "fused SGD")
    return train::make_optimizer({.kind = OptimizerKind::kSgd, .lr = lr, .momentum = 0.9}, {{parameters}});
  if (kind == "fused AdamW")
    return train::make_optimizer({.kind = OptimizerKind::kAdamW, .lr = lr}, {{parameters}});
  return std::make_unique<ddprun::Optimizer<torch::optim::SGD>>(parameters,
                                                                torch::optim::SGDOptions(lr).momentum(0.9));
}

enum class Moment { kNever, kBackward, kAfterStep, kNextBatch, kAfterEpoch, kAfterSave };

/// A training of three epochs of six steps, and the moment, once, at which another rank is lost.
struct OwnTraining {
  std::string optimizer = "SGD";
  Moment lost = Moment::kNever;
  int lost_in = 8;  ///< this step, from 0, or in the epoch that it ends
  bool streams = false;
  bool by_hand = false;    ///< batches are not the loader's
  bool validates = false;  ///< with a loader that looks like the training's
  bool validates_first = false;

  struct Result {
    std::string file;
    int rounds = 0, steps = 0;
  };

  template <typename Loader>
  void train_epoch(Context& ctx, RecoveringRank& rank, Loader& loader,
                   DistributedDataParallel<SmallNet>& model, torch::optim::Optimizer& optimizer,
                   std::int64_t epoch) {
    for (auto& [input, target] : loader.epoch(by_hand ? 100 + epoch : epoch)) {
      if (by_hand) torch::manual_seed(100 * epoch + step_of_epoch);
      const bool loses = lost_in == steps && !was_lost;
      fails = loses && lost == Moment::kBackward;
      optimizer.zero_grad();
      torch::mse_loss(model(input), target).backward();
      optimizer.step();
      ++steps, ++step_of_epoch;
      if (loses) lose(lost == Moment::kNextBatch ? &rank : nullptr, Moment::kAfterStep);
    }
    static_cast<void>(ctx);
  }

  void lose(const RecoveringRank* rank, Moment here) {
    if (rank == nullptr && lost != here) return;
    was_lost = true;
    if (rank == nullptr) throw LostRank();
    rank->begin_round();
  }

  void train(Context& ctx, RecoveringRank& rank, const std::string& path) {
    torch::manual_seed(1);
    DistributedDataParallel<SmallNet> model(ctx, SmallNet());
    model.register_comm_hook(ddp::make_comm_hook([&](ddp::Bucket& bucket) {
      auto sum = ddp::all_reduce_async(ctx.group().handle(), bucket.getBufferRef());
      if (!std::exchange(fails, false)) return sum;
      was_lost = true;
      return ddp::then(sum, [](const torch::Tensor&) -> torch::Tensor { throw LostRank(); });
    }));
    const auto chosen = make(optimizer, model.parameters());
    DataLoader set(ctx, TwelveExamples(), {.batch_size = 2, .seed = 3});
    DataLoader stream(ctx, TwelveInTurn(), {.batch_size = 2});
    DataLoader validation(ctx, TwelveExamples(), {.batch_size = 1});
    Checkpoint checkpoint(ctx, path, model, *chosen);
    const auto validate = [&] {
      const torch::NoGradGuard no_grad;
      for (auto& [input, target] : validation.epoch()) static_cast<void>(model->forward(input));
    };
    for (auto epoch = checkpoint.resume(); epoch < 3;) {
      step_of_epoch = 0;
      if (validates_first) validate();
      streams ? train_epoch(ctx, rank, stream, model, *chosen, epoch)
              : train_epoch(ctx, rank, set, model, *chosen, epoch);
      if (validates) validate();
      const bool loses = !was_lost && steps > lost_in;
      if (loses) lose(nullptr, Moment::kAfterEpoch);
      checkpoint.save(++epoch);
      if (loses && lost == Moment::kAfterSave) {
        std::filesystem::remove(path);  // rank 0 had not written it
        lose(nullptr, Moment::kAfterSave);
      }
    }
  }

  Result run() {
    const TempDir dir;
    RecoveringRank rank;
    const auto path = (dir.path() / "checkpoint.pt").string();
    Result result;
    result.rounds = rank.run([&](Context& ctx) { train(ctx, rank, path); });
    result.file = read_file(path);
    result.steps = steps;
    return result;
  }

  bool was_lost = false, fails = false;
  int steps = 0, step_of_epoch = 0;
};

/// Whether it ends as an undisturbed training, with at most that many steps done again.
void check_exact(OwnTraining lossy, int steps_again) {
  auto undisturbed = lossy;
  undisturbed.lost = Moment::kNever;
  const auto expected = undisturbed.run(), result = lossy.run();
  REQUIRE(expected.steps == 18);
  CHECK(result.rounds == 2);
  CHECK(result.steps == 18 + steps_again);
  CHECK((result.file == expected.file));
}

}  // namespace

TEST_CASE("a step that was done when a rank was lost is not done again, whatever the optimizer",
          "[recover]") {
  const auto optimizer = GENERATE(as<std::string>(), "SGD", "Adam", "fused SGD", "fused AdamW");
  const auto lost = GENERATE(Moment::kBackward, Moment::kAfterStep, Moment::kNextBatch, Moment::kAfterEpoch);
  const bool streams = GENERATE(false, true);
  CAPTURE(optimizer, lost, streams);
  check_exact({.optimizer = optimizer, .lost = lost, .streams = streams}, 0);
}

TEST_CASE("a step that changes no weight is not done again", "[recover]") {
  const auto lost = GENERATE(Moment::kAfterStep, Moment::kNextBatch);
  check_exact({.optimizer = "tiny steps", .lost = lost}, 0);
  check_exact({.optimizer = "tiny steps without momentum", .lost = lost}, 0);
}

TEST_CASE("where nobody sees the optimizer's steps, the training goes on from the file", "[recover]") {
  check_exact({.optimizer = "unseen", .lost = Moment::kAfterStep}, 3);  // six steps are in the file
}

TEST_CASE("a loop whose batches are its own goes on from the file", "[recover]") {
  const auto lost = GENERATE(Moment::kBackward, Moment::kAfterStep, Moment::kAfterEpoch);
  CAPTURE(lost);
  const int since_file = lost == Moment::kBackward ? 2 : lost == Moment::kAfterStep ? 3 : 6;
  check_exact({.lost = lost, .by_hand = true}, since_file);
}

TEST_CASE("a validation whose loader looks like the training's does not move its position", "[recover]") {
  const auto lost = GENERATE(Moment::kAfterStep, Moment::kNextBatch, Moment::kAfterEpoch);
  CAPTURE(lost);
  check_exact({.lost = lost, .validates = true}, 0);
  check_exact({.lost = lost, .validates_first = true}, 0);
}

TEST_CASE("a checkpoint that rank 0 was lost in is written in the next round", "[recover]") {
  for (const int lost_in : {8, 17}) check_exact({.lost = Moment::kAfterSave, .lost_in = lost_in}, 0);
}

TEST_CASE("a loader for evaluation leaves the round as well", "[recover]") {
  RecoveringRank rank;
  Context ctx(rank.env, *rank.group, &*rank.recovery);
  DataLoader loader(ctx, TwelveExamples(), {.each_once = true});
  for ([[maybe_unused]] auto& batch : loader.epoch()) break;
  rank.begin_round();
  CHECK_THROWS_AS(loader.next(), ddp::RoundOver);
}

TEST_CASE("after a lost rank an epoch has as many batches as before", "[recover]") {
  RecoveringRank rank;
  std::vector<std::int64_t> batches;
  rank.run([&](Context& ctx) {
    DistributedDataParallel<SmallNet> model(ctx, SmallNet());
    ddprun::Optimizer<torch::optim::SGD> optimizer(model->parameters(), 0.1);
    DataLoader loader(ctx, TwelveExamples(), {.batch_size = 2});
    Checkpoint checkpoint(ctx, "none.pt", model, optimizer);
    int seen = 0;
    for (auto& [input, target] : loader.epoch(checkpoint.resume())) {
      if (++seen == 5 && ctx.env().round == 0) throw LostRank();
      torch::mse_loss(model(input), target).backward();
      optimizer.step();
    }
    batches = {loader.batches(), seen};
  });
  CHECK(batches == std::vector<std::int64_t>{6, 2});
}

TEST_CASE("after a lost rank the batches since the last step are done again", "[recover]") {
  const bool synchronized = GENERATE(false, true);
  CAPTURE(synchronized);
  RecoveringRank rank;
  std::vector<std::vector<float>> seen;  // by round
  rank.run([&](Context& ctx) {
    DistributedDataParallel<SmallNet> model(ctx, SmallNet());
    ddprun::Optimizer<torch::optim::SGD> optimizer(model->parameters(),
                                                   torch::optim::SGDOptions(0.1).momentum(0.9));
    DataLoader loader(ctx, TwelveExamples(), {.batch_size = 2});
    Checkpoint checkpoint(ctx, "none.pt", model, optimizer);
    auto& batches = seen.emplace_back();
    for (auto& [input, target] : loader.epoch(checkpoint.resume())) {
      batches.push_back(input[0][0].item<float>());
      const auto backward = [&] { torch::mse_loss(model(input), target).backward(); };
      if (batches.size() % 2 == 1) {
        if (synchronized) {
          backward();
        } else {
          const auto no_sync = model.no_sync();
          backward();
        }
        continue;
      }
      if (seen.size() == 1 && batches.size() == 4) throw LostRank();
      backward();
      optimizer.step();
    }
  });
  REQUIRE(seen.size() == 2);
  REQUIRE(seen[1].size() == 4);
  CHECK(seen[1][0] == seen[0][2]);
  CHECK(seen[1][1] == seen[0][3]);
}

TEST_CASE("after a lost rank an epoch that the loop left early is over", "[recover]") {
  enum class Lost { kAfterBreak, kBeforeStep, kAfterStep };
  const bool validates = GENERATE(false, true);
  const auto lost = GENERATE(Lost::kAfterBreak, Lost::kBeforeStep, Lost::kAfterStep);
  CAPTURE(validates, lost);
  RecoveringRank rank;
  std::vector<std::pair<std::int64_t, std::int64_t>> seen;  // epoch and position of each batch that is done
  rank.run([&](Context& ctx) {
    DistributedDataParallel<SmallNet> model(ctx, SmallNet());
    ddprun::Optimizer<torch::optim::SGD> optimizer(model->parameters(), 0.1);
    DataLoader loader(ctx, TwelveExamples(), {.batch_size = 2});
    DataLoader validation(ctx, TwelveExamples(), {.batch_size = 2});
    Checkpoint checkpoint(ctx, "none.pt", model, optimizer);
    for (auto epoch = checkpoint.resume(); epoch < 3; ++epoch) {
      const auto lose_if = [&](Lost here) {
        if (lost == here && ctx.env().round == 0 && epoch == 1) throw LostRank();
      };
      for (auto& [input, target] : loader.epoch(epoch)) {
        if (loader.position() > 3) break;
        if (loader.position() == 1) lose_if(Lost::kBeforeStep);
        torch::mse_loss(model(input), target).backward();
        optimizer.step();
        seen.emplace_back(epoch, loader.position());
        if (loader.position() == 1) lose_if(Lost::kAfterStep);
      }
      lose_if(Lost::kAfterBreak);
      if (validates)
        for ([[maybe_unused]] auto& batch : validation.epoch()) continue;
    }
  });
  std::vector<std::pair<std::int64_t, std::int64_t>> expected;
  for (int epoch = 0; epoch < 3; ++epoch)
    for (int batch = 1; batch <= 3; ++batch) expected.emplace_back(epoch, batch);
  CHECK(seen == expected);
}

TEST_CASE("after a lost rank weights that something other than a step has changed are not kept",
          "[recover]") {
  RecoveringRank rank;
  std::vector<std::int64_t> positions;
  rank.run([&](Context& ctx) {
    torch::manual_seed(1);
    DistributedDataParallel<SmallNet> model(ctx, SmallNet());
    ddprun::Optimizer<torch::optim::Adam> optimizer(model->parameters(), 0.1);
    DataLoader loader(ctx, TwelveExamples(), {.batch_size = 2});
    Checkpoint checkpoint(ctx, "none.pt", model, optimizer);
    for (auto& [input, target] : loader.epoch(checkpoint.resume())) {
      positions.push_back(loader.position());
      torch::mse_loss(model(input), target).backward();
      if (ctx.env().round == 0 && loader.position() == 3) {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : model->parameters())
          parameter.data().add_(1);  // as sharpness-aware minimization does, past the version counter
        throw LostRank();
      }
      optimizer.step();
    }
  });
  CHECK(positions == std::vector<std::int64_t>{1, 2, 3, 1, 2, 3, 4, 5, 6});
}

TEST_CASE("a rank lost in a step's closure, or while averaged weights are in use, costs no step",
          "[recover]") {
  const bool in_closure = GENERATE(true, false);
  CAPTURE(in_closure);
  RecoveringRank rank;
  std::vector<std::int64_t> positions;
  rank.run([&](Context& ctx) {
    DistributedDataParallel<SmallNet> model(ctx, SmallNet());
    ddprun::Optimizer<torch::optim::Adam> optimizer(model->parameters(), 0.1);
    train::Ema ema(model.module(), {});
    DataLoader loader(ctx, TwelveExamples(), {.batch_size = 2});
    Checkpoint checkpoint(ctx, "none.pt", model, optimizer);
    for (auto& [input, target] : loader.epoch(checkpoint.resume())) {
      positions.push_back(loader.position());
      const bool lost = ctx.env().round == 0 && loader.position() == 3;
      if (lost && !in_closure) {
        const auto averaged = ema.swap_in();
        model(input);
      }
      optimizer.step([&, &input = input, &target = target] {
        optimizer.zero_grad();
        auto loss = torch::mse_loss(model(input), target);
        loss.backward();
        if (lost) throw LostRank();
        return loss;
      });
      ema.update();
    }
  });
  CHECK(positions == std::vector<std::int64_t>{1, 2, 3, 3, 4, 5, 6});
}

TEST_CASE("a checkpoint keeps what it is told to, in the file and in memory", "[recover]") {
  const bool in_memory = GENERATE(true, false);
  CAPTURE(in_memory);
  const TempDir dir;
  const auto path = (dir.path() / "checkpoint.pt").string();
  RecoveringRank rank;
  std::vector<std::int64_t> updates, counts;
  int count = 0;
  rank.run([&](Context& ctx) {
    DistributedDataParallel<SmallNet> model(ctx, SmallNet());
    ddprun::Optimizer<torch::optim::SGD> optimizer(model->parameters(), 0.1);
    train::Ema ema(model.module(), {});
    train::LrScheduleOptions steps;
    steps.kind = train::LrScheduleKind::kStep;
    train::LrSchedule schedule(optimizer, steps);
    Checkpoint checkpoint(ctx, path, model, optimizer);
    checkpoint.keep("ema", ema);
    checkpoint.keep("schedule", schedule);
    checkpoint.keep(
        "count", [&] { return c10::IValue(count); },
        [&](const c10::IValue& state) { count = static_cast<int>(state.toInt()); });
    checkpoint.resume();
    updates.push_back(ema.updates());
    counts.push_back(count);
    if (ctx.env().round == 1) return;
    count = 7;
    for (int i = 0; i < 3; ++i) ema.update();
    schedule.after_epoch();
    checkpoint.save(1);
    if (!in_memory) rank.recovery->round.certain = false;
    count = 8;
    throw LostRank();
  });
  CHECK(updates == std::vector<std::int64_t>{0, 3});
  CHECK(counts == std::vector<std::int64_t>{0, in_memory ? 8 : 7});
}

TEST_CASE("a training that has finished early stays finished when a rank is lost after that", "[recover]") {
  const TempDir dir;
  const auto path = (dir.path() / "checkpoint.pt").string();
  RecoveringRank rank;
  std::vector<std::int64_t> begun;
  rank.run([&](Context& ctx) {
    DistributedDataParallel<SmallNet> model(ctx, SmallNet());
    ddprun::Optimizer<torch::optim::SGD> optimizer(model->parameters(), 0.1);
    Checkpoint checkpoint(ctx, path, model, optimizer);
    begun.push_back(checkpoint.resume());
    CHECK(checkpoint.finished() == (ctx.env().round > 0));
    if (ctx.env().round == 1) return;
    checkpoint.finish();
    std::filesystem::remove(path);  // so that only the memory knows
    throw LostRank();
  });
  CHECK(begun == std::vector<std::int64_t>{0, Checkpoint::kNoMore});
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("a second checkpoint takes back that the program recovers in place", "[recover]") {
  RecoveringRank rank;
  Context ctx(rank.env, *rank.group, &*rank.recovery);
  DistributedDataParallel<SmallNet> model(ctx, SmallNet());
  ddprun::Optimizer<torch::optim::SGD> optimizer(model->parameters(), 0.1);
  const Checkpoint first(ctx, "first.pt", model, optimizer);
  CHECK(receive_abilities(rank.ddprun.get()).value().recovers);
  const Checkpoint second(ctx, "second.pt", model, optimizer);
  CHECK(!receive_abilities(rank.ddprun.get()).value().recovers);
}

TEST_CASE("a state that cannot be kept costs the recovery, not the process", "[recover]") {
  RecoveringRank rank;
  CHECK(rank.run([&](Context& ctx) {
    DistributedDataParallel<SmallNet> model(ctx, SmallNet());
    ddprun::Optimizer<torch::optim::LBFGS> optimizer(model->parameters());  // not supported
    Checkpoint checkpoint(ctx, "none.pt", model, optimizer);
    checkpoint.resume();
    if (ctx.env().round == 0) throw LostRank();
  }) == 2);
}

TEST_CASE("a new rank 0 without a run folder takes the others' state and reads no files", "[recover]") {
  const TempDir dir;
  std::filesystem::current_path(dir.path());
  write_file_atomic("checkpoints", "not a folder");
  test::run_ranks(2, [](const ddp::ProcessGroup& group) {
    train::RunMemory memory;
    if (group.rank() == 1) {
      memory.state.emplace();
      memory.state->model = c10::impl::GenericDict(c10::StringType::get(), c10::TensorType::get());
      memory.state->optimizer = memory.state->model;
      memory.state->position = {2, 3};
    }
    memory.share(group);
    ensure(memory.state->position.samples == 3, "rank 1's state");
  });
}

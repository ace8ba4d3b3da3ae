// What a user's own program is made of: Context, DistributedDataParallel<Module>, DataLoader, Checkpoint.
#include <ddprun/run/checkpoint.h>
#include <ddprun/run/context.h>
#include <ddprun/run/data_loader.h>
#include <ddprun/run/distributed.h>

#include <torch/data/datasets/tensor.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/script.h>

#include <fcntl.h>
#include <unistd.h>

#include <functional>
#include <optional>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/data/loader.h>
#include <ddprun/train/state/checkpoint.h>
#include "tests/support/catch.h"
#include "tests/support/refused.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using test::ContainsSubstring;

namespace {

struct OwnNet : torch::nn::Module {
  OwnNet()
      : first(register_module("first", torch::nn::Linear(3, 4))),
        second(register_module("second", torch::nn::Linear(4, 1))) {}
  torch::Tensor forward(const torch::Tensor& input, double scale = 1) {
    return second(torch::tanh(first(input))) * scale;
  }
  torch::nn::Linear first, second;
};

/// Examples i: ([i, i, i], [2 i]).
struct CountedExamples {
  std::int64_t count;
  std::int64_t size() const { return count; }
  std::pair<torch::Tensor, torch::Tensor> get(std::int64_t index) const {
    const auto value = static_cast<double>(index);
    return {torch::full({3}, value), torch::full({1}, 2 * value)};
  }
};

/// Batches of a type of one's own.
struct OwnWords {
  struct Batch {
    std::vector<std::string> words;
    std::int64_t first;
  };
  std::int64_t size() const { return 5; }
  Batch get_batch(const std::vector<std::int64_t>& indices) const {
    Batch batch{{}, indices.front()};
    for (const auto index : indices) batch.words.emplace_back(static_cast<std::size_t>(index + 1), 'x');
    return batch;
  }
};

/// Examples i: ([i, i, i], [2 i]) of one rank's share, in order, as far as the epoch's number and 3.
struct CountedStream {
  auto stream(const Context& ctx, std::int64_t epoch) const {
    return [i = std::int64_t{ctx.rank()}, step = ctx.world_size(),
            end = epoch + 3]() mutable -> std::optional<std::pair<torch::Tensor, torch::Tensor>> {
      if (i >= end) return std::nullopt;
      return CountedExamples{end}.get(std::exchange(i, i + step));
    };
  }
};

/// OwnNet in TorchScript, returning a tuple of the result and a list.
torch::jit::Module script_net(OwnNet& net) {
  torch::jit::Module script("ScriptNet");
  for (const auto& item : net.named_parameters()) {
    auto name = item.key();
    std::replace(name.begin(), name.end(), '.', '_');
    script.register_parameter(name, item.value().detach().clone().requires_grad_(), false);
  }
  script.register_buffer("calls", torch::zeros({1}));
  script.define(R"(
def forward(self, input):
    self.calls.add_(1)
    hidden = torch.tanh(torch.linear(input, self.first_weight, self.first_bias))
    return torch.linear(hidden, self.second_weight, self.second_bias), [hidden]
)");
  return script;
}

void on_own_ranks(int ranks, const std::function<void(const Context&)>& run) {
  test::run_ranks(ranks, [&](const ddp::ProcessGroup& group) {
    WorkerEnv env;
    env.rank = group.rank();
    env.world_size = group.size();
    run(Context(env, group));
  });
}

std::vector<double> own_weights_of(torch::nn::Module& module) {
  std::vector<double> all;
  for (const auto& parameter : module.parameters()) {
    const auto flat = parameter.detach().to(torch::kDouble).view(-1).contiguous();
    all.insert(all.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return all;
}

torch::Tensor own_loss_of(DistributedDataParallel<OwnNet>& model, const Context& ctx, int step) {
  torch::manual_seed(100 * step + ctx.rank());
  const auto input = torch::randn({5, 3});
  return torch::nn::functional::mse_loss(model(input), input.sum(1, true));
}

}  // namespace

TEST_CASE("a context's collectives take tensors and numbers", "[own_program]") {
  const int ranks = GENERATE(1, 3);
  on_own_ranks(ranks, [ranks](const Context& ctx) {
    const double last = ranks - 1;
    const auto mine = torch::tensor({1.0 + ctx.rank(), 5.0});
    const auto equal = [](const torch::Tensor& got, const torch::Tensor& expected) {
      ensure(torch::equal(got, expected), "the tensor expected");
    };
    equal(ctx.all_reduce(mine), torch::tensor({ranks * (last + 2) / 2, 5.0 * ranks}));
    equal(ctx.all_reduce(mine, Op::kMean), torch::tensor({(last + 2) / 2, 5.0}));
    equal(ctx.all_reduce(mine, Op::kMax), torch::tensor({1 + last, 5.0}));
    equal(ctx.all_reduce(torch::tensor({ctx.rank()}), Op::kMin), torch::tensor({0}));
    equal(mine, torch::tensor({1.0 + ctx.rank(), 5.0}));
    ensure(ctx.all_reduce(1.0 + ctx.rank(), Op::kMean) == (last + 2) / 2, "the mean of numbers");
    equal(ctx.broadcast(mine, ranks - 1), torch::tensor({1 + last, 5.0}));
    const auto all = ctx.all_gather(mine.t());
    ensure(static_cast<int>(all.size()) == ranks, "a tensor from each rank");
    equal(all.back(), torch::tensor({1 + last, 5.0}));
    ensure(ctx.gather(mine, ranks - 1).empty() == (ctx.rank() != ranks - 1), "one rank gets them");
    ctx.barrier();
    try {
      ctx.all_reduce(torch::tensor({1}), Op::kMean);
      ensure(false, "refused");
    } catch (const std::invalid_argument& error) {
      ensure(
          std::string(error.what()) == "all_reduce: expected a floating-point tensor for the mean, got Long",
          error.what());
    }
  });
}

TEST_CASE("a context tells ddprun what the program knows of its progress", "[own_program]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  const UniqueFd out(ends[0]), in(ends[1]);
  WorkerEnv env;
  env.status_fd = in.get();
  const Context ctx(env, ddp::ProcessGroup::connect(env, {}));
  ctx.status({.step = 12, .steps = 40, .phase = "train", .loss = 0.5});
  char line[200];
  const auto size = ::read(out.get(), line, sizeof line);
  REQUIRE(size > 0);
  CHECK(std::string(line, static_cast<std::size_t>(size)) ==
        R"({"step":12,"steps":40,"phase":"train","loss":0.5})"
        "\n");
}

TEST_CASE("a DistributedDataParallel<Module> trains as the engine under it", "[own_program]") {
  on_own_ranks(2, [](const Context& ctx) {
    torch::manual_seed(ctx.rank());  // rank 0's weights count
    OwnNet net;
    torch::manual_seed(ctx.rank());
    DistributedDataParallel<OwnNet> model(ctx, OwnNet());
    ddp::DistributedDataParallel engine(net, ctx.group());
    torch::optim::SGD optimizer(model->parameters(), 0.1), reference(net.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      torch::manual_seed(10 * step + ctx.rank());
      const auto input = torch::randn({4, 3});
      model.zero_grad();
      reference.zero_grad();
      {
        const auto local = model.no_sync();
        model(input, 0.5).mean().backward();
      }
      model(input, 2.0).mean().backward();
      {
        const auto local = engine.no_sync();
        engine.forward([&] { return net.forward(input, 0.5); }).mean().backward();
      }
      engine.forward([&] { return net.forward(input, 2.0); }).mean().backward();
      optimizer.step();
      reference.step();
    }
    ensure(own_weights_of(model.module()) == own_weights_of(net), "the same weights");
    const auto all = ctx.all_gather(model->first->weight);
    ensure(torch::equal(all[0], all[1]), "on both ranks");
  });
}

TEST_CASE("a DistributedDataParallel takes a module's holder, a Sequential and a shared_ptr",
          "[own_program]") {
  on_own_ranks(2, [](const Context& ctx) {
    const auto layers = [] {
      torch::manual_seed(3);
      return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Tanh(), torch::nn::Linear(4, 1));
    };
    const bool finds_unused = true;
    const auto sequential = layers();
    DistributedDataParallel of_sequential(ctx, sequential, {.find_unused_parameters = finds_unused});
    DistributedDataParallel<torch::nn::Sequential> of_named(ctx, layers());
    DistributedDataParallel of_pointer(ctx, layers().ptr());
    static_assert(std::is_same_v<decltype(of_sequential)::Module, torch::nn::SequentialImpl>);
    ensure(&of_sequential.module() == sequential.get(), "the holder's own module is trained");
    torch::manual_seed(4);
    torch::nn::Linear alone(3, 1);
    DistributedDataParallel<torch::nn::Linear> of_holder(ctx, alone);
    DistributedDataParallel<torch::nn::LinearImpl> of_module(ctx, torch::nn::Linear(3, 1));

    torch::manual_seed(ctx.rank());
    const auto input = torch::randn({4, 3});
    for (auto* model : {&of_sequential, &of_pointer}) (*model)(input).mean().backward();
    of_named(input).mean().backward();
    of_holder(input).mean().backward();
    for (const auto& parameter : {of_sequential.parameters()[0], of_pointer.parameters()[0],
                                  of_named.parameters()[0], of_holder.parameters()[0]}) {
      const auto all = ctx.all_gather(parameter.grad());
      ensure(torch::equal(all[0], all[1]) && all[0].abs().sum().item<double>() > 0,
             "the mean over the ranks");
    }
    ensure(torch::equal(of_sequential.parameters()[0].grad(), of_named.parameters()[0].grad()),
           "the same module");
  });
}

TEST_CASE("no_sync(false) changes nothing, and does not end an outer no_sync", "[own_program]") {
  on_own_ranks(2, [](const Context& ctx) {
    DistributedDataParallel<OwnNet> model(ctx, OwnNet());
    const auto differs = [&] {
      const auto all = ctx.all_gather(model->first->weight.grad());
      return !torch::equal(all[0], all[1]);
    };
    torch::manual_seed(ctx.rank());
    for (int step = 0; step < 8; ++step) {
      if (step % 4 == 0) model.zero_grad();
      const auto guard = model.no_sync(step % 4 != 3);
      model(torch::randn({4, 3})).mean().backward();
      ensure(differs() == (step % 4 != 3), "gradients are exchanged with the fourth batch");
    }
    model.zero_grad();
    const auto outer = model.no_sync();
    const auto inner = model.no_sync(false);
    model(torch::randn({4, 3})).mean().backward();
    ensure(differs(), "the outer one holds");
  });
}

TEST_CASE("a TorchScript model trains as the module it was made of", "[own_program]") {
  on_own_ranks(2, [](const Context& ctx) {
    const bool finds_unused = true;  // so that the result's tensors are looked at
    torch::manual_seed(ctx.rank());  // rank 0's weights count
    OwnNet net;
    DistributedDataParallel<torch::jit::Module> model(ctx, script_net(net),
                                                      {.find_unused_parameters = finds_unused});
    DistributedDataParallel<OwnNet> same(ctx, std::make_shared<OwnNet>(net));
    torch::optim::SGD optimizer(model.parameters(), 0.1), reference(same.parameters(), 0.1);
    ensure(model.parameters().size() == 4, "its parameters");
    for (int step = 0; step < 3; ++step) {
      torch::manual_seed(10 * step + ctx.rank());
      const auto input = torch::randn({4, 3});
      model.zero_grad();
      same.zero_grad();
      model(input).toTupleRef().elements()[0].toTensor().mean().backward();
      same(input).mean().backward();
      optimizer.step();
      reference.step();
    }
    for (std::size_t i = 0; i < 4; ++i)
      ensure(torch::allclose(model.parameters()[i], same.parameters()[i], 1e-6, 1e-6), "the same weights");
    ensure(model->attr("calls").toTensor().item<double>() == 3, "its buffer is its own");
  });
}

TEST_CASE("a gradient from the bare module is warned of once", "[own_program]") {
  on_own_ranks(2, [](const Context& ctx) {
    static int warnings = 0;
    configure_logging("test");
    log_to([](const std::string&) { ++warnings; });
    DistributedDataParallel<OwnNet> model(ctx, OwnNet());
    const auto input = torch::ones({2, 3});
    for (int step = 0; step < 2; ++step) {
      {
        const auto local = model.no_sync();
        model(input).sum().backward();
      }
      model(input).sum().backward();
    }
    ensure(warnings == 0, "nothing is wrong yet");
    for (int step = 0; step < 3; ++step) model->forward(input).sum().backward();
    ensure(warnings == 1, "one warning");
    log_to({});
  });
}

TEST_CASE("a loader gives each rank the share of DistributedSampler", "[own_program]") {
  on_own_ranks(2, [](const Context& ctx) {
    DataLoader loader(ctx, CountedExamples{11}, {.batch_size = 4, .seed = 7});
    data::DistributedSampler sampler(11, 2, ctx.rank(), {.seed = 7});
    for (int epoch = 0; epoch < 2; ++epoch) {
      sampler.set_epoch(epoch);
      std::vector<std::int64_t> seen;
      for (auto& [input, target] : loader.epoch(epoch)) {
        ensure(input.size(1) == 3 && torch::equal(2 * input.narrow(1, 0, 1), target), "pairs are stacked");
        for (int i = 0; i < input.size(0); ++i) seen.push_back(input[i][0].item<std::int64_t>());
      }
      ensure(seen == sampler.indices() && loader.batches() == 2, "the sampler's order");
    }
    DataLoader whole(ctx, CountedExamples{11}, {.batch_size = 4, .drop_last = true, .num_workers = 0});
    std::int64_t examples = 0;
    for (auto& [input, target] : whole.epoch()) examples += input.size(0);
    ensure(examples == 4, "five each, of which four are a batch");
    DataLoader once(ctx, CountedExamples{11}, {.batch_size = 4, .each_once = true});
    double sum = 0;
    for (auto& [input, target] : once.epoch()) sum += input.narrow(1, 0, 1).sum().item<double>();
    ensure(ctx.all_reduce(sum) == 55, "each example once");
  });
}

TEST_CASE("a loader says how many batches an epoch has before the first begins", "[own_program]") {
  on_own_ranks(2, [](const Context& ctx) {
    for (const bool drops : {false, true})
      for (const bool each_once : {false, true}) {
        DataLoader loader(ctx, CountedExamples{11},
                          {.batch_size = 2, .drop_last = drops, .each_once = each_once});
        const auto before = loader.batches();
        std::int64_t batches = 0;
        for ([[maybe_unused]] auto& batch : loader.epoch()) ++batches;
        ensure(before == batches && loader.batches() == batches, "as many as it then has");
      }
  });
}

TEST_CASE("what is no data set for a loader is refused by its concepts", "[own_program]") {
  struct WithoutSize {
    int get(std::int64_t) const { return 1; }
  };
  struct WithoutExamples {
    std::int64_t size() const { return 1; }
    void get_batch(int, int) const {}
  };
  STATIC_REQUIRE(MapDataset<CountedExamples>);
  STATIC_REQUIRE(MapDataset<OwnWords>);
  STATIC_REQUIRE(IterableDataset<CountedStream>);
  STATIC_REQUIRE_FALSE(MapDataset<WithoutSize>);
  STATIC_REQUIRE_FALSE(MapDataset<WithoutExamples>);
  STATIC_REQUIRE_FALSE(MapDataset<std::shared_ptr<CountedExamples>>);
  STATIC_REQUIRE_FALSE(PairOfTensors<std::string>);
  STATIC_REQUIRE(PairOfTensors<torch::data::Example<>>);
}

TEST_CASE("a loader takes batches of any type, a collate function and LibTorch's data sets",
          "[own_program]") {
  on_own_ranks(1, [](const Context& ctx) {
    DataLoader words(ctx, OwnWords(), {.batch_size = 2, .shuffle = false});
    std::vector<std::string> all;
    for (const auto& batch : words.epoch()) all.insert(all.end(), batch.words.begin(), batch.words.end());
    ensure(all == std::vector<std::string>{"x", "xx", "xxx", "xxxx", "xxxxx"}, "batches of one's own type");

    const auto sum = [](const std::vector<std::pair<torch::Tensor, torch::Tensor>>& examples) {
      double total = 0;
      for (const auto& [input, target] : examples) total += target.item<double>();
      return total;
    };
    DataLoader sums(ctx, CountedExamples{4}, {.batch_size = 2, .shuffle = false}, sum);
    std::vector<double> totals;
    for (const double total : sums.epoch()) totals.push_back(total);
    ensure(totals == std::vector<double>{2, 10}, "the collate function's");

    struct Pairs : torch::data::datasets::Dataset<Pairs> {
      torch::data::Example<> get(std::size_t index) override {
        return {torch::full({2}, static_cast<double>(index)),
                torch::tensor(static_cast<std::int64_t>(index))};
      }
      std::optional<std::size_t> size() const override { return 3; }
    };
    DataLoader pairs(ctx, Pairs(), {.batch_size = 3, .shuffle = false});
    for (auto& [input, target] : pairs.epoch())
      ensure(
          torch::equal(input.sum(1), torch::tensor({0., 2., 4.})) && torch::equal(target, torch::arange(3)),
          "LibTorch's data set");
  });
}

TEST_CASE("a loader reads a stream of unknown length in batches", "[own_program]") {
  on_own_ranks(2, [](const Context& ctx) {
    for (const int workers : {0, 1}) {
      DataLoader loader(ctx, CountedStream(), {.batch_size = 2, .num_workers = workers});
      for (const std::int64_t epoch : {0, 6, 4}) {
        std::vector<double> seen;
        for (auto& [input, target] : loader.epoch(epoch)) {
          ensure(input.size(0) <= 2, "batches of two");
          for (int i = 0; i < target.size(0); ++i) seen.push_back(target[i].item<double>());
        }
        std::vector<double> expected;
        for (auto i = ctx.rank(); i < epoch + 3; i += 2) expected.push_back(2.0 * i);
        ensure(seen == expected, "this rank's share, from its beginning");
      }
      for ([[maybe_unused]] auto& batch : loader.epoch(7)) break;  // an epoch may be left
    }
    DataLoader whole(ctx, CountedStream(), {.batch_size = 2, .drop_last = true});
    int batches = 0;
    for ([[maybe_unused]] auto& batch : whole.epoch(3)) ++batches;
    ensure(batches == 1, "three examples each, of which two are a batch");
  });
}

TEST_CASE("a checkpoint goes on as if nothing had happened, though only rank 0 sees the file",
          "[own_program]") {
  const TempDir dir;
  on_own_ranks(2, [&](const Context& ctx) {
    const auto path = dir.path() / ("of_rank_" + std::to_string(ctx.rank()) + ".pt");
    const auto train = [&](DistributedDataParallel<OwnNet>& model, torch::optim::Adam& optimizer,
                           std::int64_t from, std::int64_t to, Checkpoint* checkpoint) {
      for (auto epoch = from; epoch < to;) {
        optimizer.zero_grad();
        own_loss_of(model, ctx, static_cast<int>(epoch)).backward();
        optimizer.step();
        ++epoch;
        if (checkpoint != nullptr) checkpoint->save(epoch);
      }
    };
    torch::manual_seed(1);
    DistributedDataParallel<OwnNet> model(ctx, OwnNet());
    torch::optim::Adam optimizer(model->parameters(), 0.1);
    Checkpoint checkpoint(ctx, path, model, optimizer);
    ensure(checkpoint.resume() == 0, "nothing to resume");
    train(model, optimizer, 0, 3, &checkpoint);
    train(model, optimizer, 3, 5, nullptr);
    ensure(std::filesystem::exists(path) == ctx.is_main(), "rank 0 writes");

    torch::manual_seed(2);
    DistributedDataParallel<OwnNet> other(ctx, OwnNet());
    torch::optim::Adam fresh(other->parameters(), 0.5);
    Checkpoint again(ctx, path, other, fresh);
    ensure(again.resume() == 3, "three epochs are finished");
    train(other, fresh, 3, 5, nullptr);
    ensure(own_weights_of(model.module()) == own_weights_of(other.module()), "the same weights");
  });
}

TEST_CASE("a training that has finished early stays finished", "[own_program]") {
  const TempDir dir;
  on_own_ranks(2, [&](const Context& ctx) {
    const auto path = dir.path() / "own.pt";
    const auto start = [&](std::int64_t stop_in) {
      torch::manual_seed(1);
      DistributedDataParallel<OwnNet> model(ctx, OwnNet());
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      Checkpoint checkpoint(ctx, path, model, optimizer);
      test::ensure_refused(
          [&] {
            checkpoint.keep(
                "finished", [] { return c10::IValue(true); }, [](const c10::IValue&) {});
          },
          "a name other than 'finished'");
      std::int64_t epochs = 0;
      for (auto epoch = checkpoint.resume(); epoch < 100; checkpoint.save(++epoch)) {
        ++epochs;
        if (epoch == stop_in) {
          checkpoint.finish();
          break;
        }
        if (epochs == 3) break;  // ends without a word
      }
      return std::pair(epochs, checkpoint.finished());
    };
    ensure(start(50) == std::pair<std::int64_t, bool>(3, false), "nobody has finished it: epochs 0 to 2");
    ensure(start(3) == std::pair<std::int64_t, bool>(2, true), "epochs 2 and 3");
    ensure(start(50) == std::pair<std::int64_t, bool>(0, true), "it stays finished");
    if (ctx.is_main())
      ensure(train::read_checkpoint(path).position == train::Position{4, 0}, "after four epochs");
  });
}

// What a checkpoint of several ranks holds, and how they go on from it.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <filesystem>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/group/collectives.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/optimizer_state.h>
#include <ddprun/train/state/shard_index.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/layer_stack.h"
#include "tests/worker/ddprun/serialize/pickled_values.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace ddprun::train;
using ddprun::ddp::FullyShardedDataParallel;
using ddprun::ddp::ProcessGroup;

TEST_CASE("every rank's generator state is known to all, by rank", "[checkpoint_ranks]") {
  run_ranks(3, [](const ProcessGroup& group) {
    torch::manual_seed(static_cast<std::uint64_t>(group.rank()));
    const auto states = gather_generator_states(group);
    ensure(states.size() == 3, "one for each rank");
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      ensure(!states[rank].cuda.defined(), "no GPU here");
      torch::manual_seed(rank);
      const auto expected = torch::rand({4});
      torch::manual_seed(17);
      set_generator_state(states[rank], torch::kCPU);
      ensure(torch::rand({4}).equal(expected), "the state of that rank");
    }
  });
}

namespace {

/// A sharded model with its optimizer, in training on inputs that depend on the step and the rank.
struct Sharded {
  std::shared_ptr<LayerStack> module =
      std::make_shared<LayerStack>(std::vector<Layer>{{5, 7}, {7, 3, torch::kFloat64, 1, true}, {3, 4}});
  FullyShardedDataParallel fsdp;
  torch::optim::Adam adam;

  explicit Sharded(const ProcessGroup& group)
      : fsdp(*module, group, {.unit_bytes = 100}), adam(fsdp.shards(), torch::optim::AdamOptions(0.01)) {}

  void train(std::int64_t from, std::int64_t to, int rank) {
    for (auto step = from; step < to; ++step) {
      torch::manual_seed(static_cast<std::uint64_t>(100 * step + rank));
      const auto input = torch::randn({6, 5}, torch::kFloat64);
      adam.zero_grad();
      fsdp.forward([&] { return module->forward(input).square().mean(); }).backward();
      adam.step();
    }
  }
  c10::impl::GenericDict weights() {
    const auto whole = fsdp.full_parameters();
    auto copies = make_dict();
    for (const auto& item : state_dict(*module)) copies.insert(item.key(), item.value().toTensor().clone());
    return copies;
  }
  c10::IValue optimizer(int rank) { return sharded_optimizer_state_dict(adam, fsdp, *module, rank); }

  void save(const std::filesystem::path& path, int rank) {
    auto root = make_dict();
    root.insert("model", weights());
    root.insert("optimizer", optimizer(rank));
    if (rank == 0) serialize::write_pt(path, root);
  }
  void load(const std::filesystem::path& path) {
    const auto root = serialize::read_pt(path).toGenericDict();
    {
      const auto whole = fsdp.full_parameters();
      load_weights(*module, to_weights(root.at("model"), path), path);
    }
    load_sharded_optimizer_state(adam, fsdp, *module, root.at("optimizer"), path);
  }
};

}  // namespace

TEST_CASE("a fully sharded training that is resumed equals one that was not interrupted",
          "[checkpoint_ranks]") {
  const TempDir dir;
  const auto path = dir.path() / "a.pt";
  run_ranks(2, [&](const ProcessGroup& group) {
    Sharded whole(group);
    whole.train(0, 3, group.rank());
    whole.save(path, group.rank());
    ddp::all_reduce_sum(group, {1});  // it is written
    whole.train(3, 6, group.rank());

    Sharded resumed(group);
    resumed.load(path);
    resumed.train(3, 6, group.rank());
    ensure(same(resumed.weights(), whole.weights()), "the same weights, to the bit");
    ensure(same(resumed.optimizer(group.rank()), whole.optimizer(group.rank())), "the same state");
  });
}

TEST_CASE("a fully sharded optimizer's state is taken up by another number of ranks", "[checkpoint_ranks]") {
  const TempDir dir;
  const auto path = dir.path() / "a.pt";
  run_ranks(2, [&](const ProcessGroup& group) {
    Sharded whole(group);
    whole.train(0, 2, group.rank());
    whole.save(path, group.rank());
  });
  run_ranks(3, [&](const ProcessGroup& group) {
    Sharded other(group);
    other.load(path);
    const auto expected = serialize::read_pt(path).toGenericDict();
    ensure(same(other.weights(), expected.at("model")), "the same weights");
    const auto found = other.optimizer(group.rank());
    if (group.rank() == 0) ensure(same(found, expected.at("optimizer")), "the same state");
  });
}

TEST_CASE("a fully sharded optimizer refuses a state that does not fit, by name", "[checkpoint_ranks]") {
  run_ranks(2, [](const ProcessGroup& group) {
    Sharded sharded(group);
    sharded.train(0, 1, group.rank());
    const auto refused = [&](const c10::IValue& state) {
      try {
        load_sharded_optimizer_state(sharded.adam, sharded.fsdp, *sharded.module, state, "dir/a.pt");
        return std::string("nothing");
      } catch (const IoError& error) {
        return std::string(error.what());
      }
    };
    const auto expect = [](const std::string& got, const std::string& expected) {
      ensure(got == expected, ("expected '" + expected + "', got '" + got + "'").c_str());
    };
    expect(refused(1), "dir/a.pt: state of optimizer: expected a dict, got Int");
    auto root = make_dict(), group_dict = make_dict();
    auto groups = c10::impl::GenericList(c10::AnyType::get()),
         indices = c10::impl::GenericList(c10::AnyType::get());
    root.insert("param_groups", groups);
    expect(refused(root),
           "dir/a.pt: state of optimizer: expected one parameter group, as fully sharded training has");
    group_dict.insert("params", indices);
    groups.push_back(group_dict);
    expect(refused(root), "dir/a.pt: state of optimizer: expected 6 parameters, got 0");
    for (std::int64_t i = 0; i < 6; ++i) indices.push_back(i);
    expect(refused(root), "dir/a.pt: state of optimizer: expected 'state', got none");
  });
}

namespace {

/// A parameter without dimensions, one that no step uses, and one that only some do.
struct Uneven : torch::nn::Module {
  torch::Tensor scale = register_parameter("logit_scale", torch::ones({}));
  torch::nn::Linear often = register_module("often", torch::nn::Linear(3, 2));
  torch::nn::Linear seldom = register_module("seldom", torch::nn::Linear(2, 2));
  torch::nn::Linear never = register_module("never", torch::nn::Linear(2, 2));

  /// Of an unsharded optimizer, as DistributedDataParallel's ranks have it.
  c10::IValue train() {
    torch::optim::Adam adam(parameters(), torch::optim::AdamOptions(0.01));
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      auto x = often->forward(torch::ones({4, 3}));
      if (step == 1) x = seldom->forward(x);
      (scale * x).square().mean().backward();
      adam.step();
    }
    return optimizer_state_dict(adam);
  }
};

double step_of_parameter(const c10::IValue& state, std::int64_t parameter) {
  const auto entry = state.toGenericDict().at("state").toGenericDict().at(parameter).toGenericDict();
  return entry.at("step").toTensor().item<double>();
}

}  // namespace

TEST_CASE(
    "a fully sharded optimizer takes up what DistributedDataParallel's left, parameters without a state or "
    "dimensions and steps of their own too",
    "[checkpoint_ranks]") {
  // Parameters 1 and 2 are often's, 3 and 4 seldom's, 5 and 6 never's.
  run_ranks(2, [](const ProcessGroup& group) {
    torch::manual_seed(1);
    const auto saved = Uneven().train();
    for (const bool one_unit : {false, true}) {
      Uneven module;
      FullyShardedDataParallel fsdp(module, group, {.unit_bytes = one_unit ? 1 << 20 : 1});
      torch::optim::Adam adam(fsdp.shards(), torch::optim::AdamOptions(0.01));
      load_sharded_optimizer_state(adam, fsdp, module, saved, "a.pt");
      const auto again = sharded_optimizer_state_dict(adam, fsdp, module, group.rank());
      if (group.rank() != 0) continue;
      const auto states = saved.toGenericDict().at("state").toGenericDict();
      const auto found = again.toGenericDict().at("state").toGenericDict();
      for (const std::int64_t parameter : {0, 1, 2, 3, 4})
        for (const char* key : {"exp_avg", "exp_avg_sq"})
          ensure(found.at(parameter).toGenericDict().at(key).toTensor().equal(
                     states.at(parameter).toGenericDict().at(key).toTensor()),
                 "the same state");
      ensure(found.contains(std::int64_t{5}) == one_unit, "none, or zero beside others in a unit");
      ensure(step_of_parameter(again, 0) == 3 && step_of_parameter(again, 1) == 3, "as often as it was used");
      ensure(step_of_parameter(again, 3) == (one_unit ? 3 : 1), "its own, or the unit's");
    }
  });
}

TEST_CASE("the pieces of an optimizer's state have each parameter's steps, and older ones that of all",
          "[checkpoint_ranks]") {
  run_ranks(2, [](const ProcessGroup& group) {
    torch::manual_seed(1);
    const auto saved = Uneven().train();
    Uneven module;
    FullyShardedDataParallel fsdp(module, group, {.unit_bytes = 1});
    torch::optim::Adam adam(fsdp.shards(), torch::optim::AdamOptions(0.01));
    load_sharded_optimizer_state(adam, fsdp, module, saved, "a.pt");
    Shards shards{make_shard_index(module, fsdp.units()), {}};
    auto pieces = add_optimizer_pieces(adam, fsdp, module, shards).toGenericDict();
    const auto step = [&](const char* parameter) {
      const auto value = step_of(DictReader(pieces, "optimizer"), parameter);
      return value.isNone() ? 0 : value.toTensor().item<double>();
    };
    ensure(step("logit_scale") == 3 && step("seldom.bias") == 1 && step("never.bias") == 0, "its own");
    (void)pieces.erase("steps");
    ensure(step("logit_scale") == 3 && step("seldom.bias") == 3, "the most");
  });
}

namespace {

/// Batches are drawn by the test.
struct Nothing : data::Dataset {
  std::int64_t size() const override { return 0; }
  data::Batch get_batch(const std::vector<std::int64_t>&) const override { return {}; }
};

/// A network whose gradients travel by PowerSGD from the third step on. Its parameters fill whole cache
/// lines: a resumed run forms its buckets anew, and where gradients lie otherwise in them products are
/// rounded otherwise.
struct Compressed {
  Task task = make_task();
  TrainerOptions options = make_options();
  Run run;
  ParallelModel model;

  explicit Compressed(const ProcessGroup& group) : run{task, options, group}, model(run) {}

  static Task make_task() {
    torch::nn::Sequential net(torch::nn::Linear(64, 48), torch::nn::Linear(48, 32));
    Task task;
    task.module = net.ptr();
    task.train_set = std::make_shared<Nothing>();
    task.compute_loss = [net](const data::Batch& batch) mutable {
      return BatchResult{(net->forward(batch.input) - batch.target).square().mean(1)};
    };
    return task;
  }
  static TrainerOptions make_options() {
    TrainerOptions options;
    options.parallel.comm_hook = "powersgd";
    options.parallel.powersgd_start = 2;
    return options;
  }
  void train(std::int64_t from, std::int64_t to, int rank) {
    for (auto step = from; step < to; ++step) {
      torch::manual_seed(static_cast<std::uint64_t>(100 * step + rank));
      model.zero_grad();
      model.train({torch::randn({6, 64}), torch::randn({6, 32})}, true);
    }
  }
  bool equals(const Compressed& other) const {
    const auto own = task.module->parameters(), others = other.task.module->parameters();
    return std::equal(own.begin(), own.end(), others.begin(),
                      [](const auto& a, const auto& b) { return a.equal(b); });
  }
};

}  // namespace

TEST_CASE("a training with PowerSGD that is resumed equals one that was not interrupted",
          "[checkpoint_ranks]") {
  const TempDir dir;
  const auto path = dir.path() / "a.pt";
  run_ranks(2, [&](const ProcessGroup& group) {
    torch::manual_seed(1);
    Compressed whole(group);
    whole.train(0, 5, group.rank());
    TrainingState state;
    whole.model.save(state);
    if (group.rank() == 0) save_checkpoint(path, state);
    ddp::all_reduce_sum(group, {1});  // it is written
    whole.train(5, 9, group.rank());

    torch::manual_seed(1);
    Compressed resumed(group), forgetful(group);
    state = read_checkpoint(path);
    resumed.model.load(state, path);
    resumed.train(5, 9, group.rank());
    ensure(resumed.equals(whole), "the same weights, to the bit");

    state.callbacks["PowerSGD"].toGenericDict().insert_or_assign("errors",
                                                                 c10::impl::GenericList(c10::AnyType::get()));
    forgetful.model.load(state, path);  // as if of another number of ranks
    forgetful.train(5, 9, group.rank());
    ensure(!forgetful.equals(whole), "without the errors it is another training");
  });
}

TEST_CASE("a state of PowerSGD that does not fit is refused by the file's name", "[checkpoint_ranks]") {
  run_ranks(2, [](const ProcessGroup& group) {
    torch::manual_seed(1);
    Compressed training(group);
    training.train(0, 4, group.rank());
    TrainingState state;
    training.model.save(state);
    if (group.rank() != 0) return;
    state.callbacks["PowerSGD"].toGenericDict().insert_or_assign("iteration", "four");
    try {
      training.model.load(state, "dir/a.pt");
    } catch (const IoError& error) {
      ensure(std::string(error.what()).starts_with("dir/a.pt: state of PowerSGD: "), error.what());
      return;
    }
    ensure(false, "it is refused");
  });
}

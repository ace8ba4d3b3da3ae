#include <ddprun/train/state/powersgd_checkpoint.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/types.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/group/collectives.h>
#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
namespace {

using TensorsByName = std::map<std::string, torch::Tensor>;

c10::IValue to_value(const TensorsByName& tensors) {
  auto dict = make_state();
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor.cpu());
  return dict;
}

TensorsByName to_tensors(const c10::IValue& value) {
  const DictReader reader(value, "PowerSGD");
  TensorsByName tensors;
  for (const auto& item : value.toGenericDict())
    tensors[item.key().toStringRef()] = reader.tensor(item.key().toStringRef());
  return tensors;
}

/// On every rank.
TensorsByName errors_of(const ddp::ProcessGroup& group, const TensorsByName& own, int rank) {
  TensorsByName of_rank;
  std::vector<torch::Tensor> all;
  for (const auto& [name, tensor] : own)
    all.push_back(of_rank[name] = rank == group.rank() ? tensor : torch::empty_like(tensor));
  ddp::broadcast_from(group, all, rank);
  return of_rank;
}

}  // namespace

c10::IValue gather_powersgd_state(const ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                                  const ddp::ProcessGroup& group) {
  const auto own = power_sgd.state(module);
  c10::impl::GenericList errors(c10::AnyType::get());
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto of_rank = errors_of(group, own.errors, rank);
    if (group.rank() == 0) errors.push_back(to_value(of_rank));
  }
  if (group.rank() != 0) return {};
  auto state = make_state();
  state.insert("iteration", own.iteration);
  state.insert("random_state", own.random_state);
  state.insert("qs", to_value(own.qs));
  state.insert("errors", errors);
  return state;
}

void load_powersgd_state(ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                         const ddp::ProcessGroup& group, const c10::IValue& state,
                         const std::filesystem::path& source) {
  try {
    const DictReader reader(state, "PowerSGD");
    ddp::PowerSgd::State own{reader.integer("iteration"), reader.text("random_state"), {}, {}};
    own.qs = to_tensors(reader.dict("qs"));
    const auto errors = reader.list("errors");
    if (static_cast<int>(errors.size()) == group.size())
      own.errors = to_tensors(errors[static_cast<std::size_t>(group.rank())]);
    power_sgd.load_state(module, own);
  } catch (const std::invalid_argument& error) {
    throw IoError(source, error.what());
  }
}

}  // namespace ddprun::train

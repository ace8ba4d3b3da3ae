#include <ddprun/train/state/checkpoint.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <cstring>

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
  for (const auto& name : reader.names()) tensors[name] = reader.tensor(name);
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

at::Tensor get_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state, const char* whose) {
  const std::lock_guard lock(generator.mutex());
  try {
    generator.set_state(state.contiguous());
  } catch (const c10::Error& error) {
    throw std::invalid_argument(std::string("the state of the generator of the ") + whose +
                                " does not fit: " + error.what_without_backtrace());
  }
}

std::string to_text(const at::Tensor& bytes) {
  if (!bytes.defined()) return "";
  return {bytes.const_data_ptr<std::uint8_t>(), bytes.const_data_ptr<std::uint8_t>() + bytes.numel()};
}

at::Tensor to_bytes(const std::string& text) {
  if (text.empty()) return {};
  const auto bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

}  // namespace

c10::IValue powersgd_state(const ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                           const ddp::ProcessGroup& group, bool alone) {
  const auto own = power_sgd.state(module);
  auto errors = make_list();
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto here = rank == group.rank() ? own.errors : TensorsByName();
    const auto of_rank = alone ? here : errors_of(group, own.errors, rank);
    if (alone || group.rank() == 0) errors.push_back(to_value(of_rank));
  }
  if (!alone && group.rank() != 0) return {};
  return make_state({{"iteration", own.iteration},
                     {"random_state", own.random_state},
                     {"qs", to_value(own.qs)},
                     {"errors", errors}});
}

void load_powersgd_state(ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                         const ddp::ProcessGroup& group, const c10::IValue& state,
                         const std::filesystem::path& source) try {
  const DictReader reader(state, "PowerSGD");
  ddp::PowerSgd::State own{.iteration = reader.integer("iteration"),
                           .random_state = reader.text("random_state"),
                           .errors = {},
                           .qs = to_tensors(reader.dict("qs"))};
  const auto errors = reader.list("errors");
  if (static_cast<int>(errors.size()) == group.size())
    own.errors = to_tensors(errors[static_cast<std::size_t>(group.rank())]);
  power_sgd.load_state(module, own);
} catch (const std::invalid_argument& error) {
  throw IoError(source, error.what());
}

GeneratorState generator_state(at::Device device) {
  GeneratorState state{get_state(at::detail::getDefaultCPUGenerator()), {}};
  if (device.is_cuda()) state.cuda = get_state(at::globalContext().defaultGenerator(device));
  return state;
}

void set_generator_state(const GeneratorState& state, at::Device device) {
  if (state.cpu.defined()) set_state(at::detail::getDefaultCPUGenerator(), state.cpu, "CPU");
  if (state.cuda.defined() && device.is_cuda())
    set_state(at::globalContext().defaultGenerator(device), state.cuda, "GPU");
}

std::vector<GeneratorState> gather_generator_states(const ddp::ProcessGroup& group) {
  const auto own = generator_state(group.device());
  const auto cpu = ddp::all_gather(group, to_text(own.cpu));
  const auto cuda = ddp::all_gather(group, to_text(own.cuda));
  std::vector<GeneratorState> states;
  for (std::size_t rank = 0; rank < cpu.size(); ++rank)
    states.push_back({to_bytes(cpu[rank]), to_bytes(cuda[rank])});
  return states;
}

}  // namespace ddprun::train

#include <ddprun/train/state/generator_state.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>

#include <ddprun/group/collectives.h>
#include <ddprun/group/process_group.h>

namespace ddprun::train {
namespace {

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

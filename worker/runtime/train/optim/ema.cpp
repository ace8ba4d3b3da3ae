#include <ddprun/train/optim/ema.h>

#include <ATen/core/Dict.h>
#include <ATen/ops/_foreach_lerp.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <stdexcept>

#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
namespace {

using at::Tensor;

Ema::NamedTensors to_vector(const torch::OrderedDict<std::string, Tensor>& tensors) {
  Ema::NamedTensors result;
  for (const auto& item : tensors) result.emplace_back(item.key(), item.value());
  return result;
}

}  // namespace

Ema::Ema(const torch::nn::Module& module, const Options& options)
    : Ema(to_vector(module.named_parameters()), to_vector(module.named_buffers()), options) {}

Ema::Ema(NamedTensors parameters, NamedTensors buffers, const Options& options) : options_(options) {
  if (!(options.decay >= 0 && options.decay <= 1))
    throw std::invalid_argument("weight average: expected a decay in [0, 1], got " +
                                std::to_string(options.decay));
  add(std::move(parameters), true);
  add(std::move(buffers), options.average_buffers);
}

void Ema::add(NamedTensors tensors, bool averaged) {
  const torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : tensors) {
    const auto same = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const Entry& entry) { return entry.source.is_same(tensor); });
    const bool alias = same != entries_.end();
    auto average = alias ? same->average : tensor.detach().clone();
    entries_.push_back({std::move(name), tensor, std::move(average), averaged, alias});
  }
}

std::int64_t Ema::updates() const {
  return updates_on_device_.defined() ? updates_on_device_.item<std::int64_t>() : updates_;
}

void Ema::update_unless(const at::Tensor& skipped) {
  if (!updates_on_device_.defined())
    updates_on_device_ = torch::full({}, updates_, skipped.options().dtype(torch::kInt64));
  const auto taken = skipped == 0;
  const auto first = (updates_on_device_ == 0).to(torch::kDouble);  // makes lerp copy: its weight is 1
  const auto weight = taken.to(torch::kDouble) * (first * options_.decay + (1 - options_.decay));
  for (auto& entry : entries_) {
    if (entry.alias) continue;
    if (entry.averaged && at::isFloatingType(entry.average.scalar_type()))
      entry.average.lerp_(entry.source, weight.to(entry.average.scalar_type()));
    else if (entry.averaged)
      entry.average.copy_(
          torch::lerp(entry.average.to(torch::kDouble), entry.source.to(torch::kDouble), weight));
    else
      entry.average.copy_(torch::where(taken, entry.source, entry.average));
  }
  updates_on_device_ += taken;
}

void Ema::update(const at::Tensor& skipped) {
  if (swapped_) throw std::logic_error("weight average: update() while the weights are swapped");
  const torch::NoGradGuard no_grad;
  if (skipped.defined() || updates_on_device_.defined())
    return update_unless(
        skipped.defined() ? skipped : torch::zeros({}, updates_on_device_.options().dtype(torch::kFloat32)));
  std::vector<Tensor> averages, sources;
  for (auto& entry : entries_) {
    if (entry.alias) continue;
    if (updates_ == 0 || !entry.averaged) {
      entry.average.copy_(entry.source);
    } else if (at::isFloatingType(entry.average.scalar_type())) {
      averages.push_back(entry.average);
      sources.push_back(entry.source);
    } else {
      entry.average.copy_(entry.average * options_.decay + entry.source * (1 - options_.decay));
    }
  }
  if (!averages.empty()) at::_foreach_lerp_(averages, sources, 1 - options_.decay);
  ++updates_;
}

void Ema::exchange() {
  const torch::NoGradGuard no_grad;
  for (auto& entry : entries_) {
    if (entry.alias) continue;
    const auto weights = entry.source.clone();
    entry.source.copy_(entry.average);
    entry.average.copy_(weights);
  }
}

Ema::Swap::Swap(Ema& owner) : owner_(owner) {
  if (owner.swapped_) throw std::logic_error("weight average: the weights are already swapped");
  if (owner.updates() == 0) return;
  owner.exchange();
  owner.swapped_ = true;
}

Ema::Swap::~Swap() {
  if (!owner_.swapped_) return;
  owner_.exchange();
  owner_.swapped_ = false;
}

Ema::NamedTensors Ema::averages() const {
  NamedTensors result;
  for (const auto& entry : entries_)
    result.emplace_back(entry.name, swapped_ ? entry.source.detach() : entry.average);
  return result;
}

c10::impl::GenericDict Ema::state_dict() const {
  auto state = make_state();
  state.insert("n_averaged", torch::full({}, updates(), torch::kInt64));
  for (const auto& [name, average] : averages()) state.insert("module." + name, average);
  return state;
}

void Ema::load_state_dict(const c10::impl::GenericDict& state) {
  const torch::NoGradGuard no_grad;
  const DictReader reader(state, "the weight average");
  const auto updates = static_cast<std::int64_t>(reader.number("n_averaged"));
  for (const auto& entry : entries_) {
    const auto key = "module." + entry.name;
    const auto value = reader.tensor(key);
    if (value.sizes() != entry.average.sizes())
      reader.fail(c10::str("'", key, "': expected shape ", entry.average.sizes(), ", got ", value.sizes()));
  }
  for (auto& entry : entries_) entry.average.copy_(reader.tensor("module." + entry.name));
  updates_ = updates;
  updates_on_device_.reset();
}

}  // namespace ddprun::train

#include <ddprun/train/record/model_summary.h>

#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace ddprun::train {
namespace {

using Shape = std::vector<std::int64_t>;

/// Pixels of all images in a batch.
std::int64_t places(const at::Tensor& image) { return image.numel() / image.size(1); }

/// A running operator.
struct Operator : at::ObserverContext {
  std::size_t outside = 0;  ///< the enclosing layer
  bool uses_parameters = false;
  Shape input = {};
  std::int64_t flops = 0;
  bool per_place = false;  ///< counted per place of the output
};

/// 0 for an operator that consists of others, or is not counted.
void count_flops(std::string_view name, c10::ArrayRef<const c10::IValue> inputs, Operator& to) {
  const auto tensor = [&](std::size_t i) { return inputs[i].toTensor(); };
  if (name == "aten::mm" || name == "aten::bmm") {
    to.flops = 2 * tensor(0).numel() * tensor(1).size(-1);
  } else if (name == "aten::addmm" || name == "aten::baddbmm") {
    to.flops = 2 * tensor(1).numel() * tensor(2).size(-1);
  } else if (name == "aten::convolution") {
    to.per_place = !inputs[6].toBool();  // unless transposed
    to.flops = 2 * tensor(1).numel() * (to.per_place ? 1 : places(tensor(0)));
  } else if (name.starts_with("aten::_scaled_dot_product_") && !name.ends_with("_math")) {
    to.flops = 2 * tensor(0).numel() / tensor(0).size(-1) * tensor(1).size(-2) *
               (tensor(0).size(-1) + tensor(2).size(-1));
  }
}

/// Notifies a summary of each operator on this thread.
class Watch {
 public:
  Watch(std::vector<LayerSummary>& layers, std::map<const void*, std::size_t> layer_of)
      : layers_(layers), layer_of_(std::move(layer_of)), current_(layers.size() - 1) {
    active = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~Watch() { at::removeCallback(handle_); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    auto here = std::make_unique<Operator>();
    here->outside = active->current_;
    count_flops(function.name(), function.inputs(), *here);
    if (active->current_ + 1 < active->layers_.size()) return here;
    at::Tensor other;
    std::optional<std::size_t> layer;
    for (const auto& input : function.inputs()) {
      if (!input.isTensor() || !input.toTensor().defined() || !input.toTensor().has_storage()) continue;
      const auto found = active->layer_of_.find(input.toTensor().storage().unsafeGetStorageImpl());
      if (found != active->layer_of_.end())
        layer = layer.value_or(found->second);
      else if (!other.defined())
        other = input.toTensor();
    }
    if (!layer || !other.defined()) return here;  // such as a view of a weight
    active->current_ = *layer;
    here->uses_parameters = true;
    here->input = other.sizes().vec();
    return here;
  }

  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    const auto& here = static_cast<const Operator&>(*context);
    auto& layer = active->layers_[active->current_];
    active->current_ = here.outside;
    if (function.outputs().empty() || !function.outputs()[0].isTensor()) return;
    const auto output = function.outputs()[0].toTensor();
    layer.flops += here.flops * (here.per_place ? places(output) : 1);
    if (!here.uses_parameters || !layer.output.empty()) return;
    layer.input = here.input;
    layer.output = output.sizes().vec();
  }

  static inline thread_local Watch* active = nullptr;
  std::vector<LayerSummary>& layers_;
  std::map<const void*, std::size_t> layer_of_;
  std::size_t current_;  ///< the last one means none
  at::CallbackHandle handle_;
};

std::string text_of(const Shape& shape) {
  std::string text;
  for (const auto size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return shape.empty() ? "-" : "[" + text + "]";
}

}  // namespace

std::string with_commas(std::int64_t number) {
  auto text = std::to_string(number);
  for (auto i = static_cast<std::ptrdiff_t>(text.size()) - 3; i > 0; i -= 3)
    text.insert(static_cast<std::size_t>(i), ",");
  return text;
}

std::vector<LayerSummary> summarize(const Task& task, bool sync_batch_norm) {
  auto& module = *task.module;
  std::vector<LayerSummary> layers;
  std::map<const void*, std::size_t> layer_of;
  for (const auto& item : module.named_modules()) {
    LayerSummary layer{item.key(), item.value()->name()};
    if (const auto colon = layer.type.rfind(':'); colon != std::string::npos) layer.type.erase(0, colon + 1);
    if (layer.type.ends_with("Impl")) layer.type.resize(layer.type.size() - 4);
    // It is a plain BatchNorm until it is told to take its statistics over the ranks.
    if (layer.type == "SyncBatchNorm" && !sync_batch_norm) layer.type = "BatchNorm";
    bool any = false;
    for (const auto& parameter : item.value()->parameters(/*recurse=*/false)) {
      any = true;
      if (!layer_of.emplace(parameter.storage().unsafeGetStorageImpl(), layers.size()).second) continue;
      layer.parameters += parameter.numel();
      if (parameter.requires_grad()) layer.trainable += parameter.numel();
    }
    if (any) layers.push_back(std::move(layer));
  }
  layers.push_back({"", "other operators"});
  const bool was_training = module.is_training();
  module.eval();
  const auto as_before = c10::make_scope_exit([&] { module.train(was_training); });
  const torch::NoGradGuard no_grad;
  const auto batch = task.train_set->get_batch({0});
  const Watch watch(layers, std::move(layer_of));
  task.compute_loss(batch);
  return layers;
}

std::string to_text(const std::vector<LayerSummary>& layers) {
  std::vector<std::vector<std::string>> rows = {{"layer", "type", "input", "output", "parameters", "FLOPs"}};
  LayerSummary all;
  for (const auto& layer : layers) {
    all.parameters += layer.parameters, all.trainable += layer.trainable, all.flops += layer.flops;
    rows.push_back({layer.name.empty() ? "-" : layer.name, layer.type, text_of(layer.input),
                    text_of(layer.output), with_commas(layer.parameters), with_commas(layer.flops)});
  }
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      text += (i == 0 ? "" : "  ") + (i < 4 ? row[i] + space : space + row[i]);
    }
    text += '\n';
  }
  return text + "\nparameters: " + with_commas(all.parameters) + ", " + with_commas(all.trainable) +
         " of them trained\nFLOPs of a sample's forward pass: " + with_commas(all.flops) + '\n';
}

}  // namespace ddprun::train

#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torch::nn {
class Module;
}

namespace ddprun::ddp {

/// While it lives, this thread makes tensors without memory unless a device is given: Python's `with
/// torch.device("meta")`. Pass such a module to FullyShardedDataParallel, which gives each rank its share of
/// the memory; see Options::initialise there.
///
///   auto model = [] { const ddp::MetaDevice meta; return Transformer(70'000'000'000); }();
class MetaDevice {
 public:
  MetaDevice();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

/// Makes a module without memory that gets its constructor's values later, bit for bit: torchdistX's
/// deferred_init(). The constructor's operators are recorded, and repeated for one parameter at a time. Each
/// random number is drawn twice, the first time to learn the generator's state before every operator.
///
///   ddp::DeferredInit deferred;
///   auto model = deferred.make([&] { return Transformer(config); });
///   ddp::FullyShardedDataParallel fsdp(*model, group, {.initialise = deferred});
///
/// The constructor must not read its tensors' values, and the module must register everything it keeps.
class DeferredInit {
 public:
  DeferredInit();

  /// make  returns the module's holder
  template <typename Make>
  auto make(const Make& make) {
    auto module = [&] {
      const auto recording = record();
      return make();
    }();
    add_names(*module);
    return module;
  }

  /// Sets the values of one parameter or buffer. throws  std::out_of_range for another name
  void operator()(const std::string& name, at::Tensor& values) const;

 private:
  std::shared_ptr<void> record();
  void add_names(const torch::nn::Module& module);

  struct Record;
  std::shared_ptr<Record> record_;
};

}  // namespace ddprun::ddp

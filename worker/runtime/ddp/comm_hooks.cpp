#include <ddprun/ddp/comm_hooks.h>

#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/ddp/powersgd_hook.h>

namespace ddprun::ddp {
namespace {

using Handle = c10::intrusive_ptr<c10d::ProcessGroup>;

class FunctionHook final : public c10d::CommHookInterface {
 public:
  explicit FunctionHook(std::function<FuturePtr(Bucket&)> function) : function_(std::move(function)) {}
  FuturePtr runHook(Bucket& bucket) override { return function_(bucket); }
  torch::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  std::function<FuturePtr(Bucket&)> function_;
};

CommHook compress_hook(const ProcessGroup& group, torch::Dtype dtype) {
  return make_comm_hook([group = group.handle(), dtype](Bucket& bucket) {
    const torch::Tensor buffer = bucket.getBuffer();
    // Divide first: a 16-bit sum might overflow.
    return then(all_reduce_async(group, buffer.to(dtype).div_(group->getSize())),
                [buffer](const torch::Tensor& mean) { return buffer.copy_(mean); });
  });
}

}  // namespace

FuturePtr all_reduce_async(const Handle& group, torch::Tensor tensor) {
  std::vector<torch::Tensor> tensors = {tensor};
  return group->allreduce(tensors)->getFuture()->then(
      [tensor = std::move(tensor)](c10::ivalue::Future& done) -> c10::IValue {
        done.value();  // throws the collective's error
        return tensor;
      },
      c10::TensorType::get());
}

FuturePtr all_reduce_async(const ProcessGroup& group, const torch::Tensor& tensor) {
  return all_reduce_async(group.handle(), tensor);
}

CommHook make_comm_hook(std::function<FuturePtr(Bucket&)> function) {
  return std::make_unique<FunctionHook>(std::move(function));
}

CommHook make_comm_hook(const std::string& name, const ProcessGroup& group) {
  if (name == "none") return nullptr;
  if (name == "fp16") return fp16_compress_hook(group);
  if (name == "bf16") return bf16_compress_hook(group);
  if (name == "powersgd") return powersgd_hook(std::make_shared<PowerSgd>(group));
  throw UsageError("--comm-hook: expected none, fp16, bf16 or powersgd, got '" + name + "'");
}

CommHook all_reduce_hook(const ProcessGroup& group) {
  return make_comm_hook([group = group.handle()](Bucket& bucket) {
    return all_reduce_async(group, bucket.getBufferRef().div_(group->getSize()));
  });
}

CommHook fp16_compress_hook(const ProcessGroup& group) { return compress_hook(group, torch::kHalf); }
CommHook bf16_compress_hook(const ProcessGroup& group) { return compress_hook(group, torch::kBFloat16); }

}  // namespace ddprun::ddp

// A CUDA plug-in whose GPU is this process: tensors on "cuda:N" lie in its memory, and LibTorch's kernels for
// the CPU compute with them. For tests of how a program uses a GPU, not of a GPU:
//
//   DDPRUN_CUDA_PLUGIN=libfake_gpu.so  LD_PRELOAD=libcuda.so.1 (fake_cuda.cpp)
//   FAKE_CUDA="version=...;name=..."
//   FAKE_GPU_REFUSES=aten::NAME    this operator cannot be captured in a CUDA graph
//   FAKE_GPU_MEMORY=MIB            its size; results of operators do not count (fake_memory.h)
//   either with @1                 on rank 1
//
// It is as strict as CUDA: an operator whose tensors are on different devices fails, and anything that makes
// the process wait for the GPU fails where set_sync_debug_mode() forbids it. Gloo does what NCCL would, and
// fake_graph.h what a CUDA graph would.
#include <ddprun/group/cuda_backend.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <array>
#include <atomic>
#include <set>
#include <stdexcept>

#include "tests/support/fake_graph.h"
#include "tests/support/fake_memory.h"
#include "tests/support/fake_nccl.h"

namespace {

namespace fake = ddprun::test::fake;
using at::Tensor;
using fake::of_this_rank;
using fake::on_cpu;

c10::Device the_gpu(c10::kCUDA, 0);    // this rank's, whatever its number
std::atomic<int> sync_debug_mode = 0;  // 1: warn, 2: error
std::atomic<std::int64_t> waits = 0;

void note_wait(const std::string& what) {
  fake::forbid_in_capture(what);
  ++waits;
  const auto line = "called a synchronizing CUDA operation: " + what;
  if (sync_debug_mode == 2) throw std::runtime_error(line);
  if (sync_debug_mode == 1) TORCH_WARN(line);
}

bool refuses(const std::string& name) {
  static const auto refused = of_this_rank("FAKE_GPU_REFUSES");
  return name == refused;
}

fake::Memory memory(the_gpu);
[[maybe_unused]] const bool has_allocator = (c10::SetAllocator(c10::kCUDA, &memory), true);

/// One device, whose streams execute everything at once, except NCCL's (fake_nccl.h).
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return the_gpu; }
  c10::Device getDevice() const override { return the_gpu; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(fake::current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(fake::kDefaultStream); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool high) const override { return pooled_stream(high); }
  c10::Stream getNewStream(c10::Device, int) const override { return new_stream(); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(fake::current_stream, next.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 8; }
  void record(void** event, const c10::Stream& of, c10::DeviceIndex, c10::EventFlag) const override {
    fake::record_event(event, of);
  }
  void block(void* event, const c10::Stream& it) const override { fake::block_on_event(event, it); }
  bool queryEvent(void*) const override {
    fake::forbid_in_capture("event.query");
    return true;
  }
  void synchronizeEvent(void* event) const override {
    note_wait("event.synchronize");
    if (event != nullptr) fake::wait_for(static_cast<fake::Event*>(event)->results);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<fake::Event*>(event);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& of) const override {
    note_wait("stream.synchronize");
    fake::wait_for_stream(of.id());
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    note_wait("device.synchronize");
    fake::wait_for_stream();
  }
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, the_gpu, id); }
  static c10::Stream new_stream() { return stream(fake::new_stream()); }
  /// As CUDA's: one of 32 of each priority, which are given out in turn.
  static c10::Stream pooled_stream(bool high) {
    static std::atomic<unsigned> given[2];
    static std::array<std::array<std::atomic<c10::StreamId>, 32>, 2> pools;
    auto& id = pools[high ? 1 : 0][given[high ? 1 : 0]++ % 32];
    auto none = fake::kDefaultStream;
    id.compare_exchange_strong(none, fake::new_stream());
    return stream(id);
  }
};
[[maybe_unused]] const c10::impl::DeviceGuardImplRegistrar has_guard(c10::kCUDA, new Guard);

/// A CPU tensor, made by a kernel, as one on the GPU.
Tensor on_gpu(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::from_blob(
      tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {},
      tensor.options().device(the_gpu), the_gpu);
}

/// Calls the CPU kernel on the same memory. Arguments that it changes stay the caller's.
class OnCpu {
 public:
  explicit OnCpu(const c10::OperatorHandle& op) : op_(op) {}

  void call(torch::jit::Stack* stack) {
    fake::wait_for_stream(fake::current_stream);
    static const std::set<std::string> kWaiting = {"aten::nonzero",
                                                   "aten::masked_select",
                                                   "aten::equal",
                                                   "aten::_unique2",
                                                   "aten::unique_dim",
                                                   "aten::index_put_",
                                                   "aten::repeat_interleave.Tensor"};
    const auto name = op_.schema().operator_name().name;
    if (kWaiting.contains(name)) note_wait(name);
    if (refuses(name)) fake::forbid_in_capture(name);
    const auto arguments = op_.schema().arguments().size();
    for (std::size_t i = stack->size() - arguments; i < stack->size(); ++i)
      (*stack)[i] = argument((*stack)[i]);
    if (gpu_.empty() == false && wide_cpu_)
      throw std::runtime_error("Expected all tensors to be on the same device, but found cuda:0 and cpu: " +
                               name);
    const auto graph = fake::graph_here();
    const torch::jit::Stack call(stack->end() - static_cast<std::ptrdiff_t>(arguments), stack->end());
    if (graph)
      for (const auto& given : gpu_) graph->keep(given);
    call_on_cpu(op_, stack);
    const auto results = op_.schema().returns().size();
    for (std::size_t i = stack->size() - results; i < stack->size(); ++i) (*stack)[i] = result((*stack)[i]);
    if (!graph) return;
    graph->note(
        [op = op_, call, alive = gpu_,
         made = torch::jit::Stack(stack->end() - static_cast<std::ptrdiff_t>(results), stack->end())] {
          auto again = call;
          call_on_cpu(op, &again);
          for (std::size_t i = 0; i < made.size(); ++i) give_values(made[i], again[i]);
        });
  }

 private:
  /// A GPU sums a convolution's gradients of 16 bits in float32. The CPU's kernel for them takes 80 ms an
  /// image.
  static void call_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const auto convert_last = [stack](std::size_t count, at::ScalarType type) {
      for (auto value = stack->end() - static_cast<std::ptrdiff_t>(count); value != stack->end(); ++value)
        if (value->isTensor() && value->toTensor().defined()) *value = value->toTensor().to(type);
    };
    const bool halves =
        schema.operator_name().name == "aten::convolution_backward" &&
        stack->at(stack->size() - schema.arguments().size()).toTensor().scalar_type() == at::kHalf;
    if (halves) convert_last(schema.arguments().size(), at::kFloat);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    if (halves) convert_last(schema.returns().size(), at::kHalf);
  }

  /// Copies the values of a repeated call to what the first call returned.
  static void give_values(const c10::IValue& made, const c10::IValue& again) {
    const auto give = [](const Tensor& to, const Tensor& from) {
      if (to.defined() && to.data_ptr() != from.data_ptr()) on_cpu(to).copy_(from);
    };
    if (made.isTensor()) return give(made.toTensor(), again.toTensor());
    if (!made.isTensorList()) return;
    const auto to = made.toTensorVector(), from = again.toTensorVector();
    for (std::size_t i = 0; i < to.size(); ++i) give(to[i], from[i]);
  }

  Tensor tensor(const Tensor& given) {
    if (!given.defined()) return given;
    if (given.is_cpu()) {
      wide_cpu_ = wide_cpu_ || given.dim() > 0;
      return given;
    }
    gpu_.push_back(given);
    cpu_.push_back(on_cpu(given));
    return cpu_.back();
  }
  c10::IValue argument(const c10::IValue& value) {
    if (value.isTensor()) return tensor(value.toTensor());
    if (value.isDevice()) return c10::IValue(c10::Device(c10::kCPU));
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) list.push_back(tensor(each));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& each : value.toOptionalTensorVector())
        list.push_back(each ? std::optional(tensor(*each)) : std::nullopt);
      return list;
    }
    return value;
  }
  Tensor back(const Tensor& made) const {
    for (std::size_t i = 0; i < cpu_.size(); ++i)
      if (cpu_[i].is_same(made)) return resized(gpu_[i], made);
    return on_gpu(made);
  }
  /// A kernel may resize an argument for its result, and so move it to other memory.
  static Tensor resized(const Tensor& own, const Tensor& made) {
    if (own.sizes() == made.sizes()) return own;
    own.unsafeGetTensorImpl()->shallow_copy_from(on_gpu(made).getIntrusivePtr());
    return own;
  }
  c10::IValue result(const c10::IValue& value) const {
    if (value.isTensor()) return back(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> list;
    for (const Tensor& each : value.toTensorVector()) list.push_back(back(each));
    return list;
  }

  const c10::OperatorHandle& op_;
  std::vector<Tensor> gpu_, cpu_;
  bool wide_cpu_ = false;
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { OnCpu(op).call(stack); }

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   type.value_or(at::kFloat), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           type.value_or(at::kFloat));
}

/// Between the devices this is a wait, unless non_blocking. Then, on a stream of the program's, a copy to the
/// GPU is late for other streams.
Tensor& copy(Tensor& self, const Tensor& from, bool non_blocking) {
  if (self.device() != from.device() && !non_blocking)
    note_wait(self.is_cpu() ? "copy to the CPU" : "copy to the GPU");
  if (self.device() != from.device()) fake::forbid_in_capture("copy from or to memory of the CPU");
  const auto work = [self, from] { on_cpu(self).copy_(on_cpu(from)); };
  fake::wait_for_stream(fake::current_stream);
  if (!non_blocking || from.is_cuda() || fake::current_stream == fake::kDefaultStream || fake::graph_here()) {
    fake::captured({self}, work);
  } else {
    on_cpu(self).zero_();
    fake::add_late(fake::current_stream, work);
  }
  return self;
}

Tensor strided(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
               std::optional<int64_t> offset) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()),
                                                         self.key_set(), self.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset.value_or(self.storage_offset()));
  return result;
}

Tensor view(const Tensor& self, c10::IntArrayRef size) {
  const auto inferred = at::infer_size_dv(size, self.numel());
  const auto stride = at::detail::computeStride(self.sizes(), self.strides(), inferred);
  TORCH_CHECK(stride.has_value(), "view size is not compatible with input tensor's size and stride");
  return strided(self, inferred, *stride, std::nullopt);
}

Tensor reshape_alias(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return strided(self, size, stride, std::nullopt);
}

Tensor unfold(const Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  const auto view_of_cpu = on_cpu(self).unfold(dimension, size, step);
  return strided(self, view_of_cpu.sizes(), view_of_cpu.strides(), std::nullopt);
}

at::Scalar local_scalar(const Tensor& self) {
  note_wait("item");
  return on_cpu(self).item();
}

/// An operator implemented in this file.
Tensor computed(const std::vector<Tensor>& from, const std::function<Tensor()>& compute) {
  const auto graph = fake::graph_here();
  if (graph)
    for (const auto& tensor : from) graph->keep(tensor);
  const auto made = compute();
  if (graph) graph->note([from, compute, made] { made.copy_(compute()); });
  return on_gpu(made);
}

/// The CPU has none from half to float.
Tensor log_softmax(const Tensor& self, int64_t dim, bool to_float) {
  return computed({self}, [self, dim, to_float] {
    return at::_log_softmax(to_float ? on_cpu(self).to(at::kFloat) : on_cpu(self), dim, false);
  });
}

Tensor log_softmax_backward(const Tensor& gradient, const Tensor& output, int64_t dim, at::ScalarType type) {
  return computed({gradient, output}, [gradient, output, dim, type] {
    return at::_log_softmax_backward_data(on_cpu(gradient), on_cpu(output), dim, output.scalar_type())
        .to(type);
  });
}

void record_stream(Tensor&, c10::Stream) {}

const Tensor& resize(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  if (self.sizes() != size)
    self.unsafeGetTensorImpl()->shallow_copy_from(
        empty(size, self.scalar_type(), {}, {}, {}, {}).getIntrusivePtr());
  return self;
}

/// cuDNN computes convolutions forwards and backwards; the generic code looks for CUDA's kernels.
auto boxed() { return torch::CppFunction::makeFromBoxedFunction<&fallback>(); }

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const std::optional<Tensor>& mask, double dropout, bool causal, std::optional<double> scale,
                 bool grouped) {
  return std::get<0>(
      at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, {}, scale, grouped));
}

// SyncBatchNorm's kernels, which the CPU does not have.

/// Values of channels, for tensors of x's shape.
Tensor per_channel(const Tensor& values, const Tensor& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = -1;
  return on_cpu(values).view(shape);
}

Tensor sum_by_channel(const Tensor& values) { return values.transpose(0, 1).flatten(1).sum(1); }

Tensor batch_norm_elemt(const Tensor& x, const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias, const Tensor& mean, const Tensor& invstd, double) {
  return on_gpu((on_cpu(x) - per_channel(mean, x)) * per_channel(invstd, x) * per_channel(*weight, x) +
                per_channel(*bias, x));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_backward_reduce(const Tensor& dy, const Tensor& x,
                                                                      const Tensor& mean,
                                                                      const Tensor& invstd,
                                                                      const std::optional<Tensor>&, bool,
                                                                      bool, bool) {
  const auto sum_dy = sum_by_channel(on_cpu(dy));
  const auto sum_dy_xmu = sum_by_channel(on_cpu(dy) * (on_cpu(x) - per_channel(mean, x)));
  return {on_gpu(sum_dy), on_gpu(sum_dy_xmu), on_gpu(sum_dy_xmu * on_cpu(invstd)), on_gpu(sum_dy.clone())};
}

Tensor batch_norm_backward_elemt(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& invstd,
                                 const std::optional<Tensor>& weight, const Tensor& sum_dy,
                                 const Tensor& sum_dy_xmu, const Tensor& count) {
  TORCH_CHECK(count.scalar_type() == at::kInt, "count: expected int32");
  const auto total = on_cpu(count).sum().to(at::kFloat);
  const auto scale = per_channel(invstd, x);
  const auto spread = (on_cpu(x) - per_channel(mean, x)) * scale.square() * per_channel(sum_dy_xmu, x);
  return on_gpu((on_cpu(dy) - (per_channel(sum_dy, x) + spread) / total) * scale * per_channel(*weight, x));
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(boxed()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy);
  m.impl("as_strided", strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", unfold);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("resize_", resize);
  m.impl("record_stream", record_stream);
  m.impl("_log_softmax", log_softmax);
  m.impl("_log_softmax_backward_data", log_softmax_backward);
  m.impl("convolution", boxed());
  m.impl("convolution_backward", boxed());
  m.impl("scaled_dot_product_attention", attention);
  m.impl("batch_norm_elemt", batch_norm_elemt);
  m.impl("batch_norm_backward_reduce", batch_norm_backward_reduce);
  m.impl("batch_norm_backward_elemt", batch_norm_backward_elemt);
}

TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) { m.impl("scaled_dot_product_attention", attention); }

namespace at {

struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 8; }
  DeviceIndex current_device() const override { return the_gpu.index(); }
  DeviceIndex getCurrentDevice() const override { return the_gpu.index(); }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return the_gpu.index(); }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return the_gpu.index(); }
  int getNumGPUs() const override { return 8; }
  Device getDeviceFromPtr(void*) const override { return the_gpu; }
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return true; }  // unknowable
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    static const Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void deviceSynchronize(DeviceIndex) const override {
    note_wait("device.synchronize");
    fake::wait_for_stream();
  }
};
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at

namespace c10d {

struct FakeTimer final : Timer {
  explicit FakeTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return 0; }
};
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, FakeTimer)

}  // namespace c10d

namespace {

const ddprun::ddp::CudaPlugin kPlugin = {
    ddprun::ddp::kCudaPluginBuild,
    [](const ddprun::ddp::NcclGroup& group) -> c10::intrusive_ptr<c10d::Backend> {
      return c10::make_intrusive<fake::FakeNccl>(group);
    },
    [](c10d::Backend& of, c10::Device) { dynamic_cast<fake::FakeNccl&>(of).split("no group"); },
    [](c10::Device device) { the_gpu = device; },
    [] { return fake::groups_made; },
    [] { return "CUDA none, NCCL none, " + std::to_string(waits) + " waits"; },
    [](c10::Device) { fake::wait_for_stream(); },
    [](int mode) { sync_debug_mode = mode; },
    [](c10::Device, const std::function<void()>& work) { return fake::capture(work); }};

}  // namespace

extern "C" __attribute__((visibility("default"))) const ddprun::ddp::CudaPlugin* ddprun_cuda_plugin() {
  return &kPlugin;
}

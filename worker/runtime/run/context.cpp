#include <ddprun/run/context.h>

#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/group/collectives.h>
#include <ddprun/run/run_worker.h>

namespace ddprun {
namespace {

c10d::ReduceOp::RedOpType reduce_op(Op op) {
  switch (op) {
    case Op::kMax:
      return c10d::ReduceOp::MAX;
    case Op::kMin:
      return c10d::ReduceOp::MIN;
    default:
      return c10d::ReduceOp::SUM;  // Gloo has no AVG
  }
}

}  // namespace

Context::Context(const WorkerEnv& env, ddp::ProcessGroup group)
    : env_(env), group_(std::move(group)), heartbeat_(env.heartbeat_fd) {}

at::Tensor Context::all_reduce(const at::Tensor& tensor, Op op) const {
  const at::NoGradGuard no_grad;
  if (op == Op::kMean && !tensor.is_floating_point() && !tensor.is_complex())
    throw std::invalid_argument("all_reduce: expected a floating-point tensor for the mean, got " +
                                std::string(c10::toString(tensor.scalar_type())));
  std::vector<at::Tensor> result = {tensor.detach().clone(at::MemoryFormat::Contiguous)};
  if (world_size() == 1) return result[0];
  c10d::AllreduceOptions options;
  options.reduceOp = reduce_op(op);
  group_.handle()->allreduce(result, options)->wait();
  return op == Op::kMean ? result[0].div_(world_size()) : result[0];
}

double Context::all_reduce(double value, Op op) const {
  return all_reduce(at::scalar_tensor(value, at::kDouble), op).item<double>();
}

at::Tensor Context::broadcast(const at::Tensor& tensor, int source) const {
  auto result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  if (world_size() > 1) ddp::broadcast_from(group_, {result}, source);
  return result;
}

std::vector<at::Tensor> Context::all_gather(const at::Tensor& tensor) const {
  std::vector<at::Tensor> input = {tensor.detach().clone(at::MemoryFormat::Contiguous)};
  if (world_size() == 1) return input;
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < world_size(); ++rank) outputs[0].push_back(at::empty_like(input[0]));
  group_.handle()->allgather(outputs, input)->wait();
  return outputs[0];
}

std::vector<at::Tensor> Context::gather(const at::Tensor& tensor, int destination) const {
  auto all = all_gather(tensor);
  return rank() == destination ? all : std::vector<at::Tensor>();
}

int run(const std::function<void(Context&)>& train, const ddp::ProcessGroup::Options& options) {
  return run_worker([&](const WorkerEnv& env) {
    auto group = ddp::ProcessGroup::connect(env, options);
    Context context(env, group);
    train(context);
    group.close();
  });
}

}  // namespace ddprun

#include <ddprun/ddp/sync_batch_norm.h>

#include <ostream>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <vector>

#include <ATen/ops/batch_norm_backward_elemt.h>
#include <ATen/ops/batch_norm_backward_reduce.h>
#include <ATen/ops/batch_norm_elemt.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ddprun/ddp/norm_relu.h>
#include <ddprun/group/collectives.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/types.h>

namespace ddprun::ddp {
namespace {

using torch::Tensor;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

/// The statistics' type: the input's, but float for half and bfloat16.
torch::Dtype statistics_dtype(const Tensor& input) {
  return input.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

/// Every rank's row, [ranks, size].
Tensor gather_rows(const Group& group, const Tensor& row) {
  Tensor all = torch::empty({group->getSize() * row.numel()}, row.options()), input = row;
  all_gather_single(*group, all, input)->wait();
  return all.view({-1, row.numel()});
}

Tensor sum_over_ranks(const Group& group, Tensor values) {
  std::vector<Tensor> tensors = {std::move(values)};
  group->allreduce(tensors)->wait();
  return tensors[0];
}

/// total  values per channel of all ranks
/// own    of this rank; reads the total from the device only if these are not enough
void check_total(const Tensor& total, std::int64_t own) {
  if (own < 2 && total.item<double>() < 2)
    throw std::invalid_argument(
        "SyncBatchNorm: expected more than one value per channel over all ranks when training, got " +
        std::to_string(total.item<std::int64_t>()));
}

/// Over the batches of all ranks, per channel. spread is the biased variance on CPU, 1 / sqrt(variance + eps)
/// on CUDA, as the kernels require.
struct Statistics {
  Tensor mean;
  Tensor spread;
  Tensor counts;  ///< per rank; double on CPU, int32 on CUDA
};

struct Running {
  Tensor mean, var;  ///< undefined: not tracked
  double momentum;
};

/// spread is the biased variance. Combines sums in double, which is also exact for counts.
Statistics statistics(const Tensor& x, const Running& running, const Group& group) {
  const auto channels = x.size(1);
  auto row = torch::zeros({2 * channels + 1}, x.options().dtype(torch::kFloat64));
  if (x.numel() > 0) {
    const auto options = x.options().dtype(statistics_dtype(x));
    // The running values only tell the kernel the type to compute in.
    const auto [mean, var] = at::batch_norm_update_stats(x, torch::zeros({channels}, options),
                                                         torch::ones({channels}, options), 0);
    row.slice(0, 0, channels).copy_(mean);
    row.slice(0, channels, 2 * channels).copy_(var);
    row[2 * channels].fill_(x.numel() / channels);
  }
  const auto rows = gather_rows(group, row);
  const auto means = rows.slice(1, 0, channels), vars = rows.slice(1, channels, 2 * channels);
  const auto counts = rows.select(1, 2 * channels);
  const auto total = counts.sum();
  check_total(total, x.numel() / channels);
  const auto share = (counts / total).unsqueeze(1);
  const auto mean = (means * share).sum(0);
  const auto var = ((vars + (means - mean).square()) * share).sum(0);
  if (running.mean.defined()) {
    running.mean.mul_(1 - running.momentum).add_(mean, running.momentum);
    running.var.mul_(1 - running.momentum).add_(var * (total / (total - 1)), running.momentum);
  }
  return {mean.to(statistics_dtype(x)), var.to(statistics_dtype(x)), counts};
}

namespace cpu {

/// weight, bias  of the statistics' type, or undefined
Tensor normalize(const Tensor& x, const Tensor& weight, const Tensor& bias, const Statistics& s, double eps) {
  return std::get<0>(
      at::native_batch_norm(x, weight, bias, s.mean, s.spread, /*training=*/false, /*momentum=*/0, eps));
}

/// This rank's sums per channel: of dy, and of dy times the normalised x.
std::pair<Tensor, Tensor> gradient_sums(const Tensor& dy, const Tensor& x, const Statistics& s, double eps) {
  if (x.numel() == 0) return {torch::zeros_like(s.mean), torch::zeros_like(s.mean)};
  const auto sums = at::native_batch_norm_backward(dy, x, {}, s.mean, s.spread, {}, {}, /*train=*/false, eps,
                                                   {false, true, true});
  return {std::get<2>(sums), std::get<1>(sums)};
}

///   dx = weight / sqrt(var + eps) (dy - mean(dy) - x_hat mean(dy x_hat)),  means over all ranks
///
/// dy_sum, dy_x_sum  this rank's gradient_sums()
Tensor input_gradient(const Tensor& dy, const Tensor& x, const Tensor& weight, const Statistics& s,
                      const Tensor& dy_sum, const Tensor& dy_x_sum, double eps, const Group& group) {
  const auto sums = sum_over_ranks(group, torch::stack({dy_sum, dy_x_sum}).to(torch::kFloat64));
  if (x.numel() == 0) return torch::zeros_like(x);
  const auto means = (sums / s.counts.sum()).to(s.mean.scalar_type());
  auto scale = (s.spread + eps).rsqrt();
  if (weight.defined()) scale = scale * weight;
  auto dx = normalize(x.to(s.mean.scalar_type()), -scale * means[1], -scale * means[0], s, eps);
  std::vector<std::int64_t> per_channel(static_cast<std::size_t>(x.dim()), 1);
  per_channel[1] = -1;
  dx.addcmul_(dy.to(dx.scalar_type()), scale.view(per_channel));
  return dx.to(x.scalar_type());
}

}  // namespace cpu

namespace cuda {  // PyTorch's own kernels, called as torch/nn/modules/_functions.py (2.11) calls them

Statistics converted(const Statistics& s, double eps) {
  return {s.mean, (s.spread + eps).rsqrt(), s.counts.to(torch::kInt32)};
}

Tensor normalize(const Tensor& x, const Tensor& weight, const Tensor& bias, const Statistics& s, double eps) {
  return at::batch_norm_elemt(x, weight, bias, s.mean, s.spread, eps);
}

/// The gradients of input, weight and bias; the input's is undefined unless of_input.
std::vector<Tensor> gradients(const Tensor& dy, const Tensor& x, const Tensor& weight, const Statistics& s,
                              bool of_input, const Group& group) {
  const bool empty = x.numel() == 0;
  auto dy_sum = torch::zeros_like(s.mean), dy_x_sum = dy_sum.clone(), of_weight = dy_sum, of_bias = dy_sum;
  if (!empty)
    std::tie(dy_sum, dy_x_sum, of_weight, of_bias) = at::batch_norm_backward_reduce(
        dy, x, s.mean, s.spread, weight, /*input_g=*/true, weight.defined(), weight.defined());
  if (!of_input) return {Tensor(), of_weight, of_bias};
  const auto sums = sum_over_ranks(group, torch::stack({dy_sum, dy_x_sum}));
  if (empty) return {torch::zeros_like(x), of_weight, of_bias};
  const auto scale = weight.defined() ? weight.to(s.mean.scalar_type()) : weight;
  return {at::batch_norm_backward_elemt(dy, x, s.mean, s.spread, scale, sums[0], sums[1], s.counts),
          of_weight, of_bias};
}

}  // namespace cuda

/// Training over a group of several ranks.
struct Synchronized : torch::autograd::Function<Synchronized> {
  /// A missing parameter must be nullopt: apply() rejects undefined tensors.
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        const std::optional<Tensor>& optional_weight,
                        const std::optional<Tensor>& optional_bias, const Running& running, double eps,
                        const Group& group) {
    const auto weight = optional_weight.value_or(Tensor()), bias = optional_bias.value_or(Tensor());
    const auto x = input.contiguous(input.suggest_memory_format());
    const auto plain = statistics(x, running, group);
    const auto s = x.is_cpu() ? plain : cuda::converted(plain, eps);
    context->save_for_backward({x, weight, s.mean, s.spread, s.counts});
    context->saved_data["eps"] = eps;
    context->saved_data["group"] = group;
    if (x.numel() == 0) return torch::empty_like(x);
    if (!x.is_cpu()) return cuda::normalize(x, weight, bias, s, eps);
    const auto converted = [&](const Tensor& parameter) {
      return parameter.defined() ? parameter.to(s.mean.scalar_type()) : parameter;
    };
    return cpu::normalize(x, converted(weight), converted(bias), s, eps);
  }

  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context,
                                      const std::vector<Tensor>& gradient) {
    if (torch::GradMode::is_enabled())
      throw std::invalid_argument("SyncBatchNorm: a second derivative (create_graph) is not implemented");
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const Statistics s = {saved[2], saved[3], saved[4]};
    const double eps = context->saved_data["eps"].toDouble();
    const Group group = context->saved_data["group"].toCustomClass<c10d::ProcessGroup>();
    const auto dy = gradient[0].contiguous(x.suggest_memory_format());
    const bool of_input = context->needs_input_grad(0);
    std::vector<Tensor> result;
    if (x.is_cpu()) {
      const auto [dy_sum, dy_x_sum] = cpu::gradient_sums(dy, x, s, eps);
      const auto dx =
          of_input ? cpu::input_gradient(dy, x, weight, s, dy_sum, dy_x_sum, eps, group) : Tensor();
      result = {dx, dy_x_sum, dy_sum};
    } else {
      result = cuda::gradients(dy, x, weight, s, of_input, group);
    }
    for (std::size_t i = 1; i < 3; ++i)
      result[i] = weight.defined() ? result[i].to(weight.scalar_type()) : Tensor();
    result.resize(6);  // nothing for running, eps and group
    return result;
  }
};

bool is_plain_batch_norm(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr;
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options) : NormImplBase(options) {}

void SyncBatchNormImpl::_check_input_dim(const Tensor& input) {
  if (input.dim() >= 2 && input.dim() <= 5 && input.size(1) == options.num_features()) return;
  std::ostringstream text;
  text << "SyncBatchNorm: expected an input of 2 to 5 dimensions with " << options.num_features()
       << " channels in the second, got shape " << input.sizes();
  throw std::invalid_argument(text.str());
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  _check_input_dim(input);
  return normalized(input, count_batch());
}

Tensor SyncBatchNormImpl::forward_relu(const Tensor& input, const std::function<Tensor()>& residual) {
  _check_input_dim(input);
  const double momentum = count_batch();
  const norm_relu::Parameters parameters{weight, bias, running_mean, running_var, momentum, options.eps()};
  Tensor added;
  if (is_training() && !group_ && norm_relu::fits(input, parameters)) {
    if (residual) added = residual();
    if (!residual || norm_relu::fits(added, input)) return norm_relu::forward(input, added, parameters);
  }
  auto y = normalized(input, momentum);
  if (residual) y += added.defined() ? added : residual();
  return y.relu_();
}

/// returns  the share of this batch in the running statistics
double SyncBatchNormImpl::count_batch() {
  const bool track = is_training() && num_batches_tracked.defined();
  if (track) num_batches_tracked += 1;
  if (track && !options.momentum()) return 1 / num_batches_tracked.item<double>();  // cumulative average
  return options.momentum().value_or(0);
}

Tensor SyncBatchNormImpl::normalized(const Tensor& input, double momentum) {
  const auto present = [](const Tensor& parameter) {
    return parameter.defined() ? std::optional(parameter) : std::nullopt;
  };
  if (group_ && is_training())
    return Synchronized::apply(input, present(weight), present(bias),
                               Running{running_mean, running_var, momentum}, options.eps(), group_->handle());
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   is_training() || !options.track_running_stats(), momentum,
                                                   options.eps());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "ddprun::ddp::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps()
         << ", momentum=" << (options.momentum() ? c10::str(*options.momentum()) : "None")
         << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats()
         << ", ranks=" << (group_ ? group_->size() : 1) << ')';
}

bool has_batch_norm(const torch::nn::Module& module) {
  bool found = false;
  module.apply([&](const torch::nn::Module& part) {
    found |= is_plain_batch_norm(part) || dynamic_cast<const SyncBatchNormImpl*>(&part) != nullptr;
  });
  return found;
}

int set_group(torch::nn::Module& module, const std::optional<ProcessGroup>& group) {
  int count = 0;
  module.apply([&](torch::nn::Module& part) {
    auto* norm = dynamic_cast<SyncBatchNormImpl*>(&part);
    if (norm == nullptr) return;
    ++count;
    norm->group_ = group;
  });
  return count;
}

void forget_group(torch::nn::Module& module) { set_group(module, std::nullopt); }

int convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group) {
  for (const auto& part : module.named_modules("", /*include_self=*/false))
    if (is_plain_batch_norm(*part.value()))
      throw std::invalid_argument("convert_sync_batchnorm: " + part.key() +
                                  " is a BatchNorm; declare it as a ddprun::ddp::SyncBatchNorm");
  const int count = set_group(module, group.size() > 1 ? std::optional(group) : std::nullopt);
  if (count == 0)
    throw std::invalid_argument(
        "convert_sync_batchnorm: expected a ddprun::ddp::SyncBatchNorm in the module, found none");
  return count;
}

}  // namespace ddprun::ddp

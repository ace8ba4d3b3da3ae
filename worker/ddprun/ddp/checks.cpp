#include <ddprun/ddp/checks.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <ddprun/common/text.h>
#include <ddprun/group/collectives.h>

namespace ddprun::ddp {
namespace {

/// One parameter's counts since the last check.
struct Found {
  double nans = 0, infinities = 0;
  torch::Tensor on_device;  ///< the same for a GPU's gradients, to be read later
};

torch::Tensor count(const torch::Tensor& gradient) {
  return torch::stack({gradient.isnan().sum(), gradient.isinf().sum()}).to(torch::kFloat64);
}

void add(Found& found, const double* counts) {
  found.nans += counts[0];
  found.infinities += counts[1];
}

void look_at(Found& found, const torch::Tensor& incoming) {
  const torch::NoGradGuard no_grad;
  const auto gradient = incoming.is_sparse() ? incoming._values() : incoming;
  if (!gradient.is_cpu()) {
    const auto counts = count(gradient);
    found.on_device = found.on_device.defined() ? found.on_device + counts : counts;
    return;
  }
  // One cheap pass settles most cases: the sum is finite unless a value is not or, rarely, it overflows.
  if (!std::isfinite(gradient.sum().item<double>())) add(found, count(gradient).const_data_ptr<double>());
}

constexpr std::int64_t kWord = sizeof(std::uint64_t);

/// Modulo 2^64, as 64-bit words.
std::uint64_t sum_of_words(const char* bytes, std::size_t size) {
  std::uint64_t sum = 0, word = 0;
  const std::size_t whole = size / kWord * kWord;
  for (std::size_t at = 0; at < whole; at += kWord) {
    std::memcpy(&word, bytes + at, kWord);
    sum += word;
  }
  word = 0;
  std::memcpy(&word, bytes + whole, size - whole);
  return sum + word;
}

/// The same on the tensor's device, where those ends that do not fill words add up as bytes.
at::Tensor sum_on_device(const at::Tensor& flat) {
  const auto bytes = flat.view(at::kByte);
  const auto size = bytes.numel();
  const auto head = std::min(size, (kWord - bytes.storage_offset() % kWord) % kWord);
  const auto whole = (size - head) / kWord * kWord;
  auto sum = bytes.narrow(0, head, whole).view(at::kLong).sum();
  if (head > 0) sum = sum + bytes.narrow(0, 0, head).sum(at::kLong);
  if (head + whole < size) sum = sum + bytes.narrow(0, head + whole, size - head - whole).sum(at::kLong);
  return sum;
}

/// Its elements in the order of memory.
at::Tensor flattened(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) return tensor.contiguous().view({-1});
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

}  // namespace

struct NanCheck::Parameter {
  std::string name;
  torch::Tensor tensor;
  unsigned hook = 0;
  Found found = {};
};

NanCheck::NanCheck(const torch::nn::Module& module, const ProcessGroup& group) : group_(group) {
  for (const auto& item : module.named_parameters())
    if (item.value().requires_grad()) parameters_.push_back({item.key(), item.value()});
  // The parameter's hook runs before its gradient is accumulated; DistributedDataParallel reads the
  // accumulated one.
  for (auto& parameter : parameters_)
    parameter.hook = parameter.tensor.register_hook(
        [&parameter](const torch::Tensor& gradient) { look_at(parameter.found, gradient); });
}

NanCheck::~NanCheck() {
  for (auto& parameter : parameters_) parameter.tensor.remove_hook(parameter.hook);
}

void NanCheck::check() {
  std::vector<torch::Tensor> on_device;
  for (const auto& parameter : parameters_)
    if (parameter.found.on_device.defined()) on_device.push_back(parameter.found.on_device);
  const auto counts = on_device.empty() ? torch::Tensor() : torch::cat(on_device).cpu();  // the only copy
  const auto* next = on_device.empty() ? nullptr : counts.const_data_ptr<double>();
  std::string own;  // this rank's first bad parameter
  for (auto& parameter : parameters_) {
    Found found = std::exchange(parameter.found, {});
    if (found.on_device.defined()) add(found, std::exchange(next, next + 2));
    if (found.nans + found.infinities == 0 || !own.empty()) continue;
    own = c10::str(parameter.name, " on rank ", group_.rank(), ": ", std::llround(found.nans), " NaN and ",
                   std::llround(found.infinities), " infinite of ", parameter.tensor.numel(), " values");
  }

  std::string text;
  for (const auto& bad : all_gather(group_, own))
    if (!bad.empty()) text += (text.empty() ? "gradient of " : "; of ") + bad;
  if (!text.empty()) throw NonFiniteGradient(text);
}

std::uint64_t checksum(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<std::uint64_t> sums;
  std::vector<at::Tensor> on_device;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    const auto flat = flattened(tensor.detach());
    if (flat.is_cpu())
      sums.push_back(sum_of_words(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()));
    else
      on_device.push_back(sum_on_device(flat));
  }
  if (!on_device.empty()) {
    const auto all = at::stack(on_device).cpu();
    sums.insert(sums.end(), all.const_data_ptr<std::int64_t>(),
                all.const_data_ptr<std::int64_t>() + all.numel());
  }
  std::uint64_t result = 0;
  for (const auto sum : sums) result = (result ^ (result >> 32) ^ sum) * 0x9E3779B97F4A7C15u;  // one to one
  return result;
}

std::vector<int> odd_ones_out(const std::vector<std::string>& of_ranks) {
  std::map<std::string, int> counts;
  for (const auto& text : of_ranks) ++counts[text];
  int most = 0;
  for (const auto& [text, count] : counts) most = std::max(most, count);
  const auto has_most = [&](const auto& each) { return each.second == most; };
  const bool one_is = std::ranges::count_if(counts, has_most) == 1;
  std::vector<int> odd;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
    if (!one_is || counts[of_ranks[rank]] != most) odd.push_back(static_cast<int>(rank));
  return odd;
}

void check_replicas(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, std::int64_t step) {
  if (group.size() == 1) return;
  const auto sums = all_gather(group, std::to_string(checksum(tensors)));
  const auto odd = odd_ones_out(sums);
  if (odd.empty()) return;
  char host[256] = "unknown";
  ::gethostname(host, sizeof host - 1);
  const auto hosts = all_gather(group, std::string(host));
  std::vector<std::string> names;
  for (const int rank : odd)
    names.push_back(c10::str("rank ", rank, " on ", hosts[static_cast<std::size_t>(rank)]));
  const auto which = odd.size() == sums.size()
                         ? ", and no majority shows which of them are right"
                         : c10::str(odd.size() == 1 ? " has" : " have", " different bits from the other ",
                                    sums.size() - odd.size(), " ranks");
  // Fails when those end.
  if (std::ranges::find(odd, group.rank()) == odd.end()) all_reduce_sum(group, {0});
  throw ReplicasDiffer(c10::str("replicas differ after step ", step, ": ", joined(names, ", "), which,
                                ": look there for a broken core, memory or driver"),
                       odd);
}

}  // namespace ddprun::ddp

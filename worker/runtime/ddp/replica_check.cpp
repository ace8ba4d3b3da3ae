#include <ddprun/ddp/replica_check.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <torch/types.h>

#include <ddprun/common/text.h>
#include <ddprun/group/collectives.h>

namespace ddprun::ddp {
namespace {

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

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace

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
  const auto hosts = all_gather(group, host_name());
  std::vector<std::string> names;
  for (const int rank : odd)
    names.push_back("rank " + std::to_string(rank) + " on " + hosts[static_cast<std::size_t>(rank)]);
  const bool all = odd.size() == sums.size();
  const auto message =
      "replicas differ after step " + std::to_string(step) + ": " + joined(names, ", ") +
      (all ? ", and it cannot be told which of them are right"
           : std::string(odd.size() == 1 ? " has" : " have") + " other bits than the other " +
                 std::to_string(sums.size() - odd.size()) + " ranks") +
      ": look there for a broken core, memory or driver";
  if (std::ranges::find(odd, group.rank()) != odd.end()) throw ReplicasDiffer(message, odd);
  all_reduce_sum(group, {0});  // fails when they end
  throw ReplicasDiffer(message, odd);
}

}  // namespace ddprun::ddp

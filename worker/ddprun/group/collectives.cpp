#include <ddprun/group/collectives.h>

#include <algorithm>
#include <utility>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace ddprun::ddp {
namespace {

template <typename Values>
torch::Tensor view_of(Values& values) {
  return torch::from_blob(values.data(), {static_cast<std::int64_t>(values.size())},
                          sizeof(values[0]) == 1 ? torch::kUInt8 : torch::kFloat64);
}

std::vector<double> all_reduce(const ProcessGroup& group, std::vector<double> values,
                               c10d::ReduceOp::RedOpType operation) {
  if (group.size() == 1 || values.empty()) return values;
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  std::vector<torch::Tensor> tensors = {view_of(values)};
  group.handle()->allreduce(tensors, options)->wait();
  return values;
}

}  // namespace

std::vector<double> all_reduce_sum(const ProcessGroup& group, std::vector<double> values) {
  return all_reduce(group, std::move(values), c10d::ReduceOp::SUM);
}

std::vector<double> all_reduce_max(const ProcessGroup& group, std::vector<double> values) {
  return all_reduce(group, std::move(values), c10d::ReduceOp::MAX);
}

std::vector<double> all_reduce_min(const ProcessGroup& group, std::vector<double> values) {
  return all_reduce(group, std::move(values), c10d::ReduceOp::MIN);
}

bool any_rank_true(const ProcessGroup& group, bool value) {
  return all_reduce_max(group, {value ? 1.0 : 0.0})[0] > 0;
}

std::vector<double> all_gather(const ProcessGroup& group, double value) {
  std::vector<double> values(static_cast<std::size_t>(group.size()), 0);
  values[static_cast<std::size_t>(group.rank())] = value;
  return all_reduce_sum(group, std::move(values));
}

std::vector<std::string> all_gather(const ProcessGroup& group, const std::string& text) {
  if (group.size() == 1) return {text};
  const auto sizes = all_gather(group, static_cast<double>(text.size()));
  std::string longest = text;
  longest.resize(static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end())));
  std::vector<std::string> texts(sizes.size(), longest);
  if (longest.empty()) return texts;
  std::vector<torch::Tensor> own = {view_of(longest)};
  std::vector<std::vector<torch::Tensor>> all(1);
  for (auto& of_rank : texts) all[0].push_back(view_of(of_rank));
  group.handle()->allgather(all, own)->wait();
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    texts[rank].resize(static_cast<std::size_t>(sizes[rank]));
  return texts;
}

void broadcast_from(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int source) {
  constexpr std::size_t kBufferBytes = 1 << 20;  // smaller tensors are copied into one; larger ones go alone
  if (group.size() > 1 && !tensors.empty())
    c10d::broadcast_coalesced(group.handle(), tensors, kBufferBytes, source);
}

void broadcast_from_rank_0(const ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  broadcast_from(group, tensors, 0);
}

std::string broadcast_from_rank_0(const ProcessGroup& group, const std::string& text) {
  std::string result = text;
  result.resize(static_cast<std::size_t>(
      all_reduce_sum(group, {group.rank() == 0 ? static_cast<double>(text.size()) : 0.0})[0]));
  if (!result.empty()) broadcast_from_rank_0(group, {view_of(result)});
  return result;
}

}  // namespace ddprun::ddp

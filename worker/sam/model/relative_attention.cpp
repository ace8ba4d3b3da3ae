#include "worker/sam/model/relative_attention.h"

#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

namespace ddprun::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Pairs of query and key in a block. On the CPU a block's logits should stay in the caches.
constexpr std::int64_t kMostPairsOfThread = 1 << 19, kMostPairsOfDevice = 1 << 26;

struct Inputs {
  at::Tensor query, key, value, by_row, by_column;
};

/// Some queries of some of the B.
struct Block {
  std::int64_t batch, batches, query, queries;

  /// The part of a tensor [B, ...] or, if it is one of queries, [B, Q, ...].
  at::Tensor of_batches(const at::Tensor& whole) const { return whole.narrow(0, batch, batches); }
  at::Tensor of_queries(const at::Tensor& whole) const { return of_batches(whole).narrow(1, query, queries); }
};

/// Whole batches as long as the queries of one are few enough.
std::vector<Block> blocks_of(const at::Tensor& query, const at::Tensor& key) {
  const auto batches = query.size(0), queries = query.size(1), keys = key.size(1);
  if (query.numel() == 0) return {};
  const auto most = query.is_cpu() ? kMostPairsOfThread * at::get_num_threads() : kMostPairsOfDevice;
  const auto at_once = std::clamp<std::int64_t>(most / keys, 1, queries);
  const auto together = std::clamp<std::int64_t>(most / (keys * queries), 1, batches);
  std::vector<Block> blocks;
  for (std::int64_t b = 0; b < batches; b += together)
    for (std::int64_t q = 0; q < queries; q += at_once)
      blocks.push_back({b, std::min(together, batches - b), q, std::min(at_once, queries - q)});
  return blocks;
}

/// [batches, queries, keys]
at::Tensor bias_of(const Block& block, const Inputs& in, at::ScalarType type) {
  const auto by_row = block.of_queries(in.by_row).to(type),
             by_column = block.of_queries(in.by_column).to(type);
  return (by_row.unsqueeze(3) + by_column.unsqueeze(2)).flatten(2);
}

/// float of half precision
at::ScalarType wide_type(const at::Tensor& query) { return at::toOpMathType(query.scalar_type()); }

double scale_of(const at::Tensor& query) { return 1 / std::sqrt(static_cast<double>(query.size(2))); }

struct RelativeAttention : torch::autograd::Function<RelativeAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const at::Tensor& by_row, const at::Tensor& by_column) {
    context->save_for_backward({query, key, value, by_row, by_column});
    const Inputs in = {query, key, value, by_row, by_column};
    const auto bias_type = query.is_cpu() ? wide_type(query) : query.scalar_type();  // what its kernels take
    auto out = torch::empty_like(query);
    for (const auto& block : blocks_of(query, key)) {
      const auto one_head = [](const at::Tensor& x) { return x.unsqueeze(1); };
      const auto found = torch::scaled_dot_product_attention(
          one_head(block.of_queries(query)), one_head(block.of_batches(key)),
          one_head(block.of_batches(value)), one_head(bias_of(block, in, bias_type)));
      block.of_queries(out).copy_(found.squeeze(1));
    }
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Inputs in = {saved[0], saved[1], saved[2], saved[3], saved[4]};
    const auto wide = wide_type(in.query);  // sums over blocks
    Inputs found = {torch::empty_like(in.query), torch::zeros_like(in.key, wide),
                    torch::zeros_like(in.value, wide), torch::empty_like(in.by_row),
                    torch::empty_like(in.by_column)};
    for (const auto& block : blocks_of(in.query, in.key)) add_gradients(block, in, gradients[0], found);
    return {found.query, found.key.to(in.key.scalar_type()), found.value.to(in.value.scalar_type()),
            found.by_row, found.by_column};
  }

  /// Logits and what softmax makes of them in single precision at least, as in forward's kernels.
  static void add_gradients(const Block& block, const Inputs& in, const at::Tensor& of_out, Inputs& found) {
    const auto query = block.of_queries(in.query), key = block.of_batches(in.key);
    const auto gradient = block.of_queries(of_out);
    const auto type = query.scalar_type(), wide = wide_type(query);
    const auto scale = scale_of(query);
    const auto logits =
        bias_of(block, in, wide).baddbmm_(query.to(wide), key.to(wide).transpose(1, 2), 1, scale);
    const auto chances = logits.softmax(2, wide);
    block.of_batches(found.value).add_(chances.to(type).transpose(1, 2).bmm(gradient));
    const auto of_chances = gradient.bmm(block.of_batches(in.value).transpose(1, 2)).to(wide);
    const auto of_logits = at::_softmax_backward_data(of_chances, chances, 2, wide);
    const auto by_place = of_logits.unflatten(2, {in.by_row.size(2), in.by_column.size(2)});
    block.of_queries(found.by_row).copy_(by_place.sum(3));
    block.of_queries(found.by_column).copy_(by_place.sum(2));
    const auto narrow = of_logits.to(type);
    block.of_queries(found.query).copy_(narrow.bmm(key).mul_(scale));
    block.of_batches(found.key).add_(narrow.transpose(1, 2).bmm(query), scale);
  }
};

}  // namespace

at::Tensor relative_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const at::Tensor& by_row, const at::Tensor& by_column) {
  return RelativeAttention::apply(query, key, value, by_row, by_column);
}

}  // namespace ddprun::models

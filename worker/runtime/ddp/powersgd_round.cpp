#include <ddprun/ddp/powersgd_round.h>

#include <algorithm>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace ddprun::ddp {
namespace {

/// Makes the columns of each matrix orthonormal, in place. Zero columns stay zero.
void gram_schmidt(const torch::Tensor& matrices, double epsilon) {
  const std::int64_t columns = matrices.size(2);
  for (std::int64_t i = 0; i < columns; ++i) {
    const auto column = matrices.narrow(2, i, 1);
    const auto norm = torch::linalg_vector_norm(column, 2, {1}, /*keepdim=*/true);
    column.div_(epsilon == 0 ? norm.masked_fill(norm.eq(0), 1) : norm + epsilon);
    if (i + 1 == columns) break;
    const auto rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_(torch::sum(column * rest, {1}, /*keepdim=*/true) * column);
  }
}

/// matrices  [batch, length, rank]
void orthogonalize(torch::Tensor matrices, double epsilon) {
  const auto type = matrices.scalar_type();
  if (matrices.size(2) <= 2 || type == torch::kHalf || type == torch::kBFloat16) {
    gram_schmidt(matrices, epsilon);
  } else {
    auto triangles = torch::empty({matrices.size(0), matrices.size(2), matrices.size(2)}, matrices.options());
    torch::linalg_qr_out(matrices, triangles, matrices);
  }
}

/// The gradient as [rows, columns]; undefined if it has no rows or columns.
torch::Tensor as_matrix(const torch::Tensor& gradient) {
  if (gradient.dim() == 0 || gradient.numel() == 0) return {};
  return gradient.view({gradient.size(0), -1});
}

/// A view of that shape at the offset, which moves behind it.
torch::Tensor take(const torch::Tensor& row, std::int64_t& offset, torch::IntArrayRef shape) {
  const auto view = row.narrow(0, offset, c10::multiply_integers(shape)).view(shape);
  offset += view.numel();
  return view;
}

}  // namespace

bool PowerSgdRound::Batch::knows_q() const {
  return std::all_of(memories.begin(), memories.end(),
                     [](const auto& memory) { return memory->q.defined(); });
}

PowerSgdRound::PowerSgdRound(Bucket& bucket, std::vector<std::shared_ptr<PowerSgdMemory>> its_memories,
                             const PowerSgd::Options& its_options, int its_ranks)
    : options(its_options),
      ranks(its_ranks),
      buffer(bucket.getBuffer()),
      gradients(bucket.getGradients()),
      memories(std::move(its_memories)) {
  std::vector<std::size_t> compressed;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto& gradient = gradients[i];
    if (options.use_error_feedback && memories[i]->error.defined()) gradient.add_(memories[i]->error);
    const auto matrix = as_matrix(gradient);
    const std::int64_t rows = matrix.defined() ? matrix.size(0) : 0;
    const std::int64_t columns = matrix.defined() ? matrix.size(1) : 0;
    const std::int64_t size = (rows + columns) * std::min({rows, columns, options.rank});
    const bool worth_it = matrix.defined() && static_cast<double>(size) * options.min_compression_rate <
                                                  static_cast<double>(gradient.numel());
    if (worth_it)
      compressed.push_back(i);
    else
      plain.push_back(gradient);
    compression.elements_before += gradient.numel();
    compression.elements_after += worth_it ? size : gradient.numel();
  }
  if (options.use_error_feedback) before = buffer.clone();
  make_batches(compressed);
  allocate();
}

/// Orders matrices by shape, and shapes by their first occurrence.
void PowerSgdRound::make_batches(const std::vector<std::size_t>& compressed) {
  std::vector<std::vector<std::size_t>> by_shape;
  for (const std::size_t i : compressed) {
    const auto same = std::find_if(by_shape.begin(), by_shape.end(), [&](const auto& group) {
      return as_matrix(gradients[group.front()]).sizes() == as_matrix(gradients[i]).sizes();
    });
    if (same == by_shape.end())
      by_shape.push_back({i});
    else
      same->push_back(i);
  }
  for (const auto& group : by_shape)
    for (const std::size_t i : group) {
      if (i == group.front() || !options.batch_tensors_with_same_shape) batches.emplace_back();
      batches.back().parts.push_back(as_matrix(gradients[i]));
      batches.back().memories.push_back(memories[i]);
    }
}

void PowerSgdRound::allocate() {
  const auto rank_of = [&](const torch::Tensor& matrices) {
    return std::min({matrices.size(1), matrices.size(2), options.rank});
  };
  std::int64_t p_size = 0, q_size = 0;
  for (auto& batch : batches) {
    auto& matrices = batch.matrices;
    matrices = batch.parts.size() == 1 ? batch.parts[0].unsqueeze(0) : torch::stack(batch.parts);
    p_size += matrices.size(0) * matrices.size(1) * rank_of(matrices);
    q_size += matrices.size(0) * matrices.size(2) * rank_of(matrices);
  }
  ps = torch::empty({p_size}, buffer.options());
  qs = torch::empty({q_size}, buffer.options());
  p_size = q_size = 0;
  for (auto& batch : batches) {
    const auto& matrices = batch.matrices;
    batch.p = take(ps, p_size, {matrices.size(0), matrices.size(1), rank_of(matrices)});
    batch.q = take(qs, q_size, {matrices.size(0), matrices.size(2), rank_of(matrices)});
  }
}

void PowerSgdRound::fill_qs(const at::Generator& generator) {
  for (auto& batch : batches) {
    if (batch.knows_q()) {
      for (std::size_t i = 0; i < batch.parts.size(); ++i)
        batch.q[static_cast<std::int64_t>(i)].copy_(batch.memories[i]->q);
    } else {
      batch.q.copy_(torch::randn(batch.q.sizes(), generator, batch.q.options().device(torch::kCPU)));
    }
    orthogonalize(batch.q, options.orthogonalization_epsilon);
  }
}

void PowerSgdRound::compute_ps() {
  for (auto& batch : batches) torch::bmm_out(batch.p, batch.matrices, batch.q);
}

void PowerSgdRound::compute_qs() {
  for (auto& batch : batches) {
    orthogonalize(batch.p, options.orthogonalization_epsilon);
    torch::bmm_out(batch.q, batch.matrices.transpose(1, 2), batch.p);
  }
}

void PowerSgdRound::decompress() {
  qs.div_(ranks);
  for (auto& batch : batches) {
    torch::bmm_out(batch.matrices, batch.p, batch.q.transpose(1, 2));
    if (batch.parts.size() == 1) continue;
    for (std::size_t i = 0; i < batch.parts.size(); ++i)
      batch.parts[i].copy_(batch.matrices[static_cast<std::int64_t>(i)]);
  }
}

torch::Tensor PowerSgdRound::plain_row() const {
  std::vector<torch::Tensor> rows;
  for (const auto& gradient : plain) rows.push_back(gradient.view(-1));
  return torch::cat(rows);
}

void PowerSgdRound::unpack_plain(torch::Tensor& sums) {
  sums.div_(ranks);
  std::int64_t offset = 0;
  for (const auto& gradient : plain) gradient.copy_(take(sums, offset, gradient.sizes()));
}

void PowerSgdRound::remember() {
  // Before another stream reuses the memory of this round's tensors.
  if (!buffer.is_cpu())
    c10::impl::VirtualGuardImpl(buffer.device().type()).synchronizeDevice(buffer.device().index());
  if (options.use_error_feedback) remember_errors();
  if (options.warm_start) remember_qs();
}

void PowerSgdRound::remember_errors() {
  const auto errors = before - buffer;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    std::int64_t offset = gradients[i].storage_offset() - buffer.storage_offset();
    memories[i]->error = take(errors, offset, gradients[i].sizes());
  }
}

/// Drops a Q with a zero column, which would stay zero forever, to be drawn again.
void PowerSgdRound::remember_qs() {
  for (const auto& batch : batches) {
    const bool lost = batch.q.eq(0).all(1).any().item<bool>();
    for (std::size_t i = 0; i < batch.parts.size(); ++i)
      batch.memories[i]->q = lost ? torch::Tensor() : batch.q[static_cast<std::int64_t>(i)];
  }
}

}  // namespace ddprun::ddp

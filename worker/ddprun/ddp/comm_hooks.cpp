#include <ddprun/ddp/comm_hooks.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/errors.h>

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

FuturePtr ready() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  future->markCompleted(torch::Tensor());
  return future;
}

/// The future returned by next(), which is called once the first one has succeeded.
template <typename Next>
FuturePtr then_await(const FuturePtr& future, Next next) {
  return future->thenAsync(
      [next = std::move(next)](c10::ivalue::Future& done) -> FuturePtr {
        const torch::NoGradGuard no_grad;
        done.value();
        return next();
      },
      c10::TensorType::get());
}

/// A second group with the same ranks. Gloo pairs collectives by their order on each rank, which is random
/// for those started when others finish; here it need not match what backward starts meanwhile. NCCL does not
/// need it: there everything starts in backward's thread.
Handle separate_connections(const ProcessGroup& group) {
  if (group.size() == 1 || group.backend() == "nccl") return group.handle();
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group.new_group(ranks)->handle();
}

/// RandomState(seed).randint(1'000'000'000) of numpy.
std::uint32_t draw_seed(std::mt19937& random) {
  std::uint32_t value = 0;
  do value = static_cast<std::uint32_t>(random()) & ((1U << 30) - 1);
  while (value >= 1'000'000'000);
  return value;
}

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

/// A view of this shape at the offset, which advances past it.
torch::Tensor take(const torch::Tensor& row, std::int64_t& offset, torch::IntArrayRef shape) {
  const auto view = row.narrow(0, offset, c10::multiply_integers(shape)).view(shape);
  offset += view.numel();
  return view;
}

void check(const PowerSgd::Options& options) {
  const auto require = [](bool fits, const char* what, auto value) {
    if (!fits)
      throw std::invalid_argument("PowerSgd: expected " + std::string(what) + ", got " +
                                  std::to_string(value));
  };
  require(options.rank >= 1, "a rank of at least 1", options.rank);
  require(options.start_iteration >= 0, "a start_iteration of at least 0", options.start_iteration);
  require(options.min_compression_rate > 0, "a min_compression_rate above 0", options.min_compression_rate);
  require(options.orthogonalization_epsilon >= 0, "an orthogonalization_epsilon of at least 0",
          options.orthogonalization_epsilon);
}

/// A copy of the entry, with the parameter's type and on its device.
torch::Tensor fitting(const std::string& what, const torch::Tensor& entry, torch::IntArrayRef shape,
                      const torch::Tensor& parameter) {
  if (entry.sizes() != shape)
    throw std::invalid_argument(
        c10::str("PowerSgd: ", what, ": expected the shape ", shape, ", got ", entry.sizes()));
  return entry.detach().to(parameter.options(), /*non_blocking=*/false, /*copy=*/true);
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

/// PowerSgd's memory of a parameter; undefined if there is none yet.
struct PowerSgdMemory {
  torch::Tensor error;  ///< shaped as the parameter
  torch::Tensor q;      ///< [columns, rank]
};

/// PowerSgd's arithmetic on one bucket. Refers to no process group: its last owner may be one of the group's
/// threads, which cannot end the group.
struct PowerSgdRound {
  /// Matrices of one shape, compressed in one operation.
  struct Batch {
    std::vector<torch::Tensor> parts;                       ///< views of the bucket, [rows, columns] each
    std::vector<std::shared_ptr<PowerSgdMemory>> memories;  ///< of the parts
    torch::Tensor matrices;  ///< [parts, rows, columns]: a view of the bucket; a copy of several parts
    torch::Tensor p;         ///< [parts, rows, rank], a view of ps
    torch::Tensor q;         ///< [parts, columns, rank], a view of qs

    bool knows_q() const {
      return std::ranges::all_of(memories, [](const auto& memory) { return memory->q.defined(); });
    }
  };

  PowerSgd::Options options;
  int ranks;
  torch::Tensor buffer;
  torch::Tensor before;  ///< the buffer before compression, with error feedback
  std::vector<torch::Tensor> gradients;
  std::vector<std::shared_ptr<PowerSgdMemory>> memories;  ///< of the gradients
  std::vector<torch::Tensor> plain;                       ///< gradients not worth compressing
  std::vector<Batch> batches;
  torch::Tensor ps, qs;  ///< all P, all Q, concatenated
  PowerSgd::Compression compression;

  /// Adds the errors to the bucket's gradients, and picks those worth compressing.
  /// memories  of the bucket's parameters, in order
  PowerSgdRound(Bucket& bucket, std::vector<std::shared_ptr<PowerSgdMemory>> its_memories,
                const PowerSgd::Options& its_options, int its_ranks)
      : options(its_options),
        ranks(its_ranks),
        buffer(bucket.getBuffer()),
        gradients(bucket.getGradients()),
        memories(std::move(its_memories)) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto& gradient = gradients[i];
      if (options.use_error_feedback && memories[i]->error.defined()) gradient.add_(memories[i]->error);
      const bool is_matrix = gradient.dim() > 0 && gradient.numel() > 0;  // [rows, columns]
      const std::int64_t rows = is_matrix ? gradient.size(0) : 0;
      const std::int64_t columns = is_matrix ? gradient.numel() / rows : 0;
      const std::int64_t size = (rows + columns) * std::min({rows, columns, options.rank});
      const bool worth_it = is_matrix && static_cast<double>(size) * options.min_compression_rate <
                                             static_cast<double>(gradient.numel());
      if (worth_it)
        add_to_batches(gradient.view({rows, columns}), memories[i]);
      else
        plain.push_back(gradient);
      compression.elements_before += gradient.numel();
      compression.elements_after += worth_it ? size : gradient.numel();
    }
    if (options.use_error_feedback) before = buffer.clone();
    allocate();
  }

  /// Appends it after the last matrix of the same shape, or into its batch.
  void add_to_batches(const torch::Tensor& matrix, const std::shared_ptr<PowerSgdMemory>& memory) {
    const auto alike = std::find_if(batches.rbegin(), batches.rend(), [&](const Batch& batch) {
      return batch.parts.front().sizes() == matrix.sizes();
    });
    const bool found = alike != batches.rend();
    auto batch = found ? alike.base() : batches.end();
    batch = found && options.batch_tensors_with_same_shape ? std::prev(batch) : batches.emplace(batch);
    batch->parts.push_back(matrix);
    batch->memories.push_back(memory);
  }

  void allocate() {
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

  /// The last iteration's Q, else a random one: the same on every rank, different each time.
  void fill_qs(std::mt19937& random) {
    at::Generator generator;
    if (!std::ranges::all_of(batches, [](const auto& batch) { return batch.knows_q(); }))
      generator = at::make_generator<at::CPUGeneratorImpl>(draw_seed(random));
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

  /// Followed by the sum of ps over ranks.
  void compute_ps() {
    for (auto& batch : batches) torch::bmm_out(batch.p, batch.matrices, batch.q);
  }

  /// Followed by the sum of qs over ranks.
  void compute_qs() {
    for (auto& batch : batches) {
      orthogonalize(batch.p, options.orthogonalization_epsilon);
      torch::bmm_out(batch.q, batch.matrices.transpose(1, 2), batch.p);
    }
  }

  /// Writes the compressed gradients' means into the bucket.
  void decompress() {
    qs.div_(ranks);
    for (auto& batch : batches) {
      torch::bmm_out(batch.matrices, batch.p, batch.q.transpose(1, 2));
      if (batch.parts.size() == 1) continue;
      for (std::size_t i = 0; i < batch.parts.size(); ++i)
        batch.parts[i].copy_(batch.matrices[static_cast<std::int64_t>(i)]);
    }
  }

  /// Keeps what the next iteration needs. Drops a Q with a zero column, which would stay zero forever, to be
  /// drawn again.
  void remember() {
    const auto errors = options.use_error_feedback ? before - buffer : torch::Tensor();
    for (std::size_t i = 0; i < gradients.size() && errors.defined(); ++i) {
      std::int64_t offset = gradients[i].storage_offset() - buffer.storage_offset();
      memories[i]->error = take(errors, offset, gradients[i].sizes());
    }
    if (!options.warm_start) return;
    for (const auto& batch : batches) {
      const bool lost = batch.q.eq(0).all(1).any().item<bool>();
      for (std::size_t i = 0; i < batch.parts.size(); ++i)
        batch.memories[i]->q = lost ? torch::Tensor() : batch.q[static_cast<std::int64_t>(i)];
    }
  }

  /// The uncompressed gradients, to sum over ranks.
  torch::Tensor plain_row() const {
    std::vector<torch::Tensor> rows;
    for (const auto& gradient : plain) rows.push_back(gradient.view(-1));
    return torch::cat(rows);
  }

  /// Writes their means into the bucket.
  void unpack_plain(torch::Tensor& sums) {
    sums.div_(ranks);
    std::int64_t offset = 0;
    for (const auto& gradient : plain) gradient.copy_(take(sums, offset, gradient.sizes()));
  }
};

PowerSgd::PowerSgd(const ProcessGroup& group, const Options& options)
    : options_(options), group_(group.handle()), random_(options.random_seed), q_started_(ready()) {
  check(options);
  q_group_ = separate_connections(group);
}
PowerSgd::PowerSgd(const ProcessGroup& group) : PowerSgd(group, Options{}) {}

std::shared_ptr<PowerSgdMemory> PowerSgd::memory_of(Memory& memory, const torch::Tensor& parameter) {
  auto& entry = memory[parameter.unsafeGetTensorImpl()];
  if (!entry) entry = std::make_shared<PowerSgdMemory>();
  return entry;
}

FuturePtr PowerSgd::reduce(Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  const bool compress = iteration_ >= options_.start_iteration;
  if (bucket.isLast()) ++iteration_;
  if (!compress) return all_reduce_async(group_, bucket.getBufferRef().div_(group_->getSize()));

  std::vector<std::shared_ptr<PowerSgdMemory>> memories;
  for (const auto& parameter : bucket.getParameters()) memories.push_back(memory_of(memory_, parameter));
  const auto round =
      std::make_shared<PowerSgdRound>(bucket, std::move(memories), options_, group_->getSize());
  compression_.elements_before += round->compression.elements_before;
  compression_.elements_after += round->compression.elements_after;

  if (group_->getBackend(round->buffer.device().type())->getBackendName() == "nccl")
    return reduce_on_stream(*round);
  FuturePtr reduced = ready();
  if (!round->plain.empty())
    reduced = then(all_reduce_async(group_, round->plain_row()), [round](torch::Tensor sums) {
      round->unpack_plain(sums);
      return sums;
    });
  if (!round->batches.empty()) reduced = reduce_compressed(round, reduced);
  return then(reduced, [round](const torch::Tensor&) {
    const auto device = round->buffer.device();  // before another stream reuses the memory of this round
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    round->remember();
    return round->buffer;
  });
}

/// NCCL: a work's wait() makes this stream wait, not this thread, so consecutive calls overlap enough.
FuturePtr PowerSgd::reduce_on_stream(PowerSgdRound& round) {
  const auto all_reduce = [&](const torch::Tensor& tensor) {
    std::vector<torch::Tensor> tensors = {tensor};
    return group_->allreduce(tensors);
  };
  torch::Tensor plain;
  c10::intrusive_ptr<c10d::Work> plain_work;
  if (!round.plain.empty()) plain_work = all_reduce(plain = round.plain_row());
  if (!round.batches.empty()) {
    round.fill_qs(random_);
    round.compute_ps();
    all_reduce(round.ps)->wait();
    round.compute_qs();
    all_reduce(round.qs)->wait();
    round.decompress();
  }
  if (plain_work) {
    plain_work->wait();
    round.unpack_plain(plain);
  }
  round.remember();
  std::vector<c10::Device> devices;
  if (!round.buffer.is_cpu()) devices.push_back(round.buffer.device());
  const auto done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), devices);
  done->markCompleted(round.buffer);  // once this stream gets here
  return done;
}

/// Starts the plain gradients and P. Q starts once they have arrived, after the previous bucket's Q: in the
/// same order on every rank.
FuturePtr PowerSgd::reduce_compressed(const std::shared_ptr<PowerSgdRound>& round, const FuturePtr& plain) {
  round->fill_qs(random_);
  round->compute_ps();
  const FuturePtr p = all_reduce_async(group_, round->ps);
  const auto q_started = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  const FuturePtr turn = std::exchange(q_started_, q_started);

  const auto arrived = then_await(then_await(plain, [p] { return p; }), [turn] { return turn; });
  const auto q = then_await(arrived, [round, q_started, q_group = q_group_] {
    round->compute_qs();
    auto sum = all_reduce_async(q_group, round->qs);
    q_started->markCompleted(torch::Tensor());
    return sum;
  });
  q->addCallback([q_started](c10::ivalue::Future& done) {
    if (!q_started->completed()) q_started->setError(done.exception_ptr());
  });
  return then(q, [round](const torch::Tensor& sums) {
    round->decompress();
    return sums;
  });
}

CommHook powersgd_hook(std::shared_ptr<PowerSgd> power_sgd) {
  return make_comm_hook(
      [power_sgd = std::move(power_sgd)](Bucket& bucket) { return power_sgd->reduce(bucket); });
}

PowerSgd::State PowerSgd::state(const torch::nn::Module& module) const {
  State state;
  state.iteration = iteration_;
  state.random_state = c10::str(random_);
  for (const auto& item : module.named_parameters()) {
    const auto found = memory_.find(item.value().unsafeGetTensorImpl());
    if (found == memory_.end()) continue;
    if (found->second->error.defined()) state.errors[item.key()] = found->second->error.clone();
    if (found->second->q.defined()) state.qs[item.key()] = found->second->q.clone();
  }
  return state;
}

void PowerSgd::load_state(const torch::nn::Module& module, const State& state) {
  const auto parameters = module.named_parameters();
  const auto find = [&](const std::string& name) {
    const auto* parameter = parameters.find(name);
    if (parameter == nullptr)
      throw std::invalid_argument("PowerSgd: the state has " + name +
                                  ", which is not a parameter of the module");
    return *parameter;
  };
  Memory memory;
  for (const auto& [name, error] : state.errors) {
    const auto parameter = find(name);
    memory_of(memory, parameter)->error = fitting("error of " + name, error, parameter.sizes(), parameter);
  }
  for (const auto& [name, q] : state.qs) {
    const auto parameter = find(name);
    const std::int64_t rows = parameter.dim() == 0 ? 1 : parameter.size(0);
    const std::int64_t columns = parameter.numel() / std::max<std::int64_t>(rows, 1);
    memory_of(memory, parameter)->q =
        fitting("q of " + name, q, {columns, std::min({rows, columns, options_.rank})}, parameter);
  }
  std::mt19937 random;
  std::istringstream random_state(state.random_state);
  if (!(random_state >> random))
    throw std::invalid_argument("PowerSgd: random_state: expected one from state()");
  memory_ = std::move(memory);
  random_ = random;
  iteration_ = state.iteration;
}

}  // namespace ddprun::ddp

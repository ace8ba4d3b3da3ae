#include <ddprun/ddp/powersgd_hook.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/ddp/powersgd_round.h>

namespace ddprun::ddp {
namespace {

using Handle = c10::intrusive_ptr<c10d::ProcessGroup>;

FuturePtr ready() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  future->markCompleted(torch::Tensor());
  return future;
}

/// The future that next() returns, called once the first one has succeeded.
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

/// A second group of the same ranks. Gloo pairs collectives by their order on each rank, which is random for
/// those started when others finish; here it need not match what backward starts meanwhile. NCCL needs none:
/// there everything starts at once.
Handle separate_connections(const ProcessGroup& group) {
  if (group.size() == 1 || group.backend() == "nccl") return group.handle();
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group.new_group(ranks)->handle();
}

/// RandomState(seed).randint(1'000'000'000) of numpy.
std::uint32_t draw_seed(std::mt19937& random) {
  for (;;) {
    const auto value = static_cast<std::uint32_t>(random()) & ((1U << 30) - 1);
    if (value < 1'000'000'000) return value;
  }
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

std::string text(torch::IntArrayRef shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

/// A copy of the entry, of the parameter's type and on its device.
torch::Tensor fitting(const std::string& what, const torch::Tensor& entry, torch::IntArrayRef shape,
                      const torch::Tensor& parameter) {
  if (entry.sizes() != shape)
    throw std::invalid_argument("PowerSgd: " + what + ": expected the shape " + text(shape) + ", got " +
                                text(entry.sizes()));
  return entry.detach().to(parameter.options(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

PowerSgd::PowerSgd(const ProcessGroup& group, const Options& options)
    : options_(options), group_(group.handle()), random_(options.random_seed), q_started_(ready()) {
  check(options);
  q_group_ = separate_connections(group);
}
PowerSgd::PowerSgd(const ProcessGroup& group) : PowerSgd(group, Options{}) {}

void PowerSgd::fill_qs(PowerSgdRound& round) {
  at::Generator generator;  // the same on every rank, different each time
  const bool known = std::all_of(round.batches.begin(), round.batches.end(),
                                 [](const auto& batch) { return batch.knows_q(); });
  if (!known) generator = at::make_generator<at::CPUGeneratorImpl>(draw_seed(random_));
  round.fill_qs(generator);
}

FuturePtr PowerSgd::reduce(Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  const bool compress = iteration_ >= options_.start_iteration;
  if (bucket.isLast()) ++iteration_;
  if (!compress) return all_reduce_async(group_, bucket.getBufferRef().div_(group_->getSize()));

  std::vector<std::shared_ptr<PowerSgdMemory>> memories;
  for (const auto& parameter : bucket.getParameters()) {
    auto& memory = memory_[parameter.unsafeGetTensorImpl()];
    if (!memory) memory = std::make_shared<PowerSgdMemory>();
    memories.push_back(memory);
  }
  const auto round =
      std::make_shared<PowerSgdRound>(bucket, std::move(memories), options_, group_->getSize());
  compression_.elements_before += round->compression.elements_before;
  compression_.elements_after += round->compression.elements_after;

  FuturePtr reduced = ready();
  if (!round->plain.empty())
    reduced = then(all_reduce_async(group_, round->plain_row()), [round](torch::Tensor sums) {
      round->unpack_plain(sums);
      return sums;
    });
  if (!round->batches.empty()) reduced = reduce_compressed(round, reduced);
  return then(reduced, [round](const torch::Tensor&) {
    round->remember();
    return round->buffer;
  });
}

/// Starts the plain gradients and P. Q starts when they have arrived, after the previous bucket's Q: in the
/// same order on every rank.
FuturePtr PowerSgd::reduce_compressed(const std::shared_ptr<PowerSgdRound>& round, const FuturePtr& plain) {
  fill_qs(*round);
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
  std::ostringstream random;
  random << random_;
  state.random_state = random.str();
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
  decltype(memory_) memory;
  const auto memory_of = [&](const torch::Tensor& parameter) -> PowerSgdMemory& {
    auto& entry = memory[parameter.unsafeGetTensorImpl()];
    if (!entry) entry = std::make_shared<PowerSgdMemory>();
    return *entry;
  };
  for (const auto& [name, error] : state.errors) {
    const auto parameter = find(name);
    memory_of(parameter).error = fitting("error of " + name, error, parameter.sizes(), parameter);
  }
  for (const auto& [name, q] : state.qs) {
    const auto parameter = find(name);
    const std::int64_t rows = parameter.dim() == 0 ? 1 : parameter.size(0);
    const std::int64_t columns = parameter.numel() / std::max<std::int64_t>(rows, 1);
    memory_of(parameter).q =
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

#include <ddprun/sharding/shard_units.h>

#include <ATen/ScalarOps.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/collectives.h>

namespace ddprun::ddp {
namespace {

/// Waits for several works.
class Works : public c10d::Work {
 public:
  void add(c10::intrusive_ptr<c10d::Work> work) { works_.push_back(std::move(work)); }
  bool wait(std::chrono::milliseconds timeout) override {
    for (auto& work : std::exchange(works_, {})) work->wait(timeout);
    return true;
  }

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

double waited = 0;  // in seconds

void wait_for(c10d::Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work.wait();
  waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

at::Tensor piece(const at::Tensor& full, int rank, int size) {
  const std::int64_t numel = full.numel() / size;
  return full.narrow(0, rank * numel, numel);
}

/// Of the parameter's values in the flat tensor: its memory order (such as channels last), if that has no
/// holes.
std::vector<std::int64_t> strides_of(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  const auto contiguous = c10::contiguous_strides(parameter.sizes());
  return {contiguous.begin(), contiguous.end()};
}

// CPU tensors travel in point-to-point messages between all ranks: Gloo's all-gather copies through a second
// buffer of the full size, and its reduce-scatter is an all-reduce of a copy. Messages carry a tag, so ranks
// that exchange different tensors wait instead of mixing them up. Other tensors use the backend's
// collectives.

/// Sends to_send(r) to every rank r, and fills to_fill(r) with data from rank r. The flight recorder sees one
/// collective: op, of the tensor `of`.
template <typename ToSend, typename ToFill>
c10::intrusive_ptr<c10d::Work> exchange(const ProcessGroup& group, const char* op, const at::Tensor& of,
                                        int tag, ToSend&& to_send, ToFill&& to_fill) {
  return record_as_one(*group.handle(), at::kCPU, op, of, [&](c10d::Backend& backend) {
    auto works = c10::make_intrusive<Works>();
    const auto each_peer = [&](auto&& action) {
      // Each rank starts with a different peer, so that not all send to the same one.
      for (int step = 1; step < group.size(); ++step) action((group.rank() + step) % group.size());
    };
    each_peer([&](int peer) {
      std::vector<at::Tensor> tensors = {to_fill(peer)};
      works->add(backend.recv(tensors, peer, tag));
    });
    each_peer([&](int peer) {
      std::vector<at::Tensor> tensors = {to_send(peer)};
      works->add(backend.send(tensors, peer, tag));
    });
    return works;
  });
}

/// Starts to gather every rank's shard, 1-D and of the same size everywhere, which must not change until the
/// returned function is called: it waits and returns the full tensor, of which rank r's shard is the r-th
/// part.
std::function<at::Tensor()> all_gather(const ProcessGroup& group, at::Tensor shard, int tag) {
  at::Tensor full = at::empty({shard.numel() * group.size()}, shard.options());
  c10::intrusive_ptr<c10d::Work> work;
  if (full.is_cpu()) {
    work = exchange(
        group, "all_gather_into_tensor", shard, tag, [&](int) { return shard; },
        [&](int peer) { return piece(full, peer, group.size()); });
    piece(full, group.rank(), group.size()).copy_(shard);
  } else {
    work = all_gather_single(*group.handle(), full, shard);
  }
  return [work, shard, full] {
    wait_for(*work);
    return full;
  };
}

/// Starts to sum a tensor, 1-D and of the same size on every rank, a multiple of the world size, which must
/// not change until the returned function is called: it waits and returns this rank's part of the sum, in a
/// new tensor. Reproducible: adds in rank order.
std::function<at::Tensor()> reduce_scatter(const ProcessGroup& group, at::Tensor full, int tag) {
  const int rank = group.rank(), size = group.size();
  if (!group.communicates()) return [full] { return full; };
  if (!full.is_cpu()) {
    // Not a view, which zero_grad() could not detach.
    at::Tensor share = at::empty({full.numel() / size}, full.options());
    return [work = reduce_scatter_single(*group.handle(), share, full), full, share] {
      wait_for(*work);
      return share;
    };
  }
  const at::Tensor received = at::empty({size, full.numel() / size}, full.options());
  auto work = exchange(
      group, "reduce_scatter_tensor", received[rank], tag, [&](int peer) { return piece(full, peer, size); },
      [&](int peer) { return received[peer]; });
  return [work, full, received, rank, size]() mutable {
    wait_for(*work);
    received[rank].copy_(piece(full, rank, size));
    full.reset();
    auto sum = received[0].clone();
    for (int of = 1; of < size; ++of) sum.add_(received[of]);
    return sum;
  };
}

}  // namespace

double FullyShardedDataParallel::seconds_waited() { return waited; }

FlatParameter::FlatParameter(const PlannedUnit& plan, std::vector<at::Tensor> parameters,
                             std::vector<std::string> names, const ProcessGroup& group, int tag,
                             const FullyShardedDataParallel::MixedPrecision& precision,
                             const std::function<void(const std::string&, at::Tensor&)>& initialise)
    : name_(plan.name),
      parameters_(std::move(parameters)),
      names_(std::move(names)),
      group_(&group),
      tag_(tag),
      arrived_(parameters_.size(), false),
      filled_(parameters_.size(), false) {
  for (const auto& part : plan.parts) offsets_.push_back(part.offset);
  const bool requires_grad = parameters_.front().requires_grad();
  const bool meta = parameters_.front().is_meta();
  flat_ = at::zeros({plan.numel}, parameters_.front().options().requires_grad(false).device(
                                      meta ? group.device() : parameters_.front().device()));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto values = view_of(flat_, i);
    if (meta)
      initialise(names_[i], values);
    else
      values.copy_(parameters_[i]);
  }
  broadcast_from_rank_0(group, {flat_});
  shard_ = is_sharded() ? own_part(flat_).clone() : flat_;
  const auto own = flat_.scalar_type();
  const bool casts = is_sharded() && at::isFloatingType(own);
  const auto compute = casts ? precision.param_dtype.value_or(own) : own;
  reduce_dtype_ = casts ? precision.reduce_dtype.value_or(compute) : own;
  if (compute != own) flat_ = at::empty({plan.numel}, flat_.options().dtype(compute));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    views_.push_back(view_of(flat_, i));
    if (meta)  // set_data() refuses to leave it
      parameters_[i].unsafeGetTensorImpl()->shallow_copy_from(views_[i].getIntrusivePtr());
    else
      parameters_[i].set_data(views_[i]);
  }
  if (!is_sharded()) shard_ = flat_.detach();
  shard_.requires_grad_(requires_grad);
  gathered_ = true;
  versions_ = versions();
  if (is_sharded()) free();
}

at::Tensor FlatParameter::view_of(const at::Tensor& flat, std::size_t parameter) const {
  const auto& like = parameters_[parameter];
  return flat.narrow(0, offsets_[parameter], like.numel()).as_strided(like.sizes(), strides_of(like));
}

std::vector<FullyShardedDataParallel::Unit::Parameter> FlatParameter::places() const {
  std::vector<FullyShardedDataParallel::Unit::Parameter> places;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    places.push_back({names_[i], parameters_[i], offsets_[i], strides_of(parameters_[i])});
  return places;
}

at::Tensor FlatParameter::own_part(const at::Tensor& flat) const {
  return piece(flat, group_->rank(), group_->size());
}

std::int64_t FlatParameter::versions() const {
  std::int64_t sum = 0;
  for (const auto& parameter : parameters_) sum += parameter._version();
  return sum;
}

void FlatParameter::set_memory(at::DataPtr&& data, std::size_t bytes) {
  auto* storage = flat_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

void FlatParameter::start_gather() {
  if (all_gather_ || gathered_) return;
  // Gathers into a new tensor, so that no message touches the watched storage.
  all_gather_ = all_gather(*group_, shard_.detach().to(flat_.scalar_type()), tag_);
}

void FlatParameter::gather_whole() {
  if (flat_.scalar_type() == shard_.scalar_type()) {
    start_gather();
    return finish_gather();
  }
  free();
  whole_ = all_gather(*group_, shard_.detach(), tag_)();
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].set_data(view_of(whole_, i));
  gathered_ = true;
  versions_ = versions();
}

void FlatParameter::finish_gather() {
  if (!all_gather_) return;
  const at::Tensor full = std::exchange(all_gather_, {})();
  auto* from = full.storage().unsafeGetStorageImpl();
  const std::size_t bytes = from->nbytes();
  set_memory(from->set_data_ptr(at::DataPtr(nullptr, full.device())), bytes);
  gathered_ = true;
  versions_ = versions();
}

void FlatParameter::free(bool keep) {
  if (!is_sharded()) return;
  if (all_gather_) std::exchange(all_gather_, {})();
  if (!gathered_) return;
  if (keep || versions() != versions_) shard_.detach().copy_(own_part(whole_.defined() ? whole_ : flat_));
  gathered_ = false;
  if (std::exchange(whole_, {}).defined()) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].set_data(views_[i]);
    return;
  }
  set_memory(at::DataPtr(nullptr, flat_.device()), 0);
}

void FlatParameter::fail(const std::string& message) {
  auto* storage = flat_.storage().unsafeGetStorageImpl();
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  // Otherwise views of it would fail first, with a message about their size.
  storage->set_nbytes(static_cast<std::size_t>(flat_.numel() * flat_.element_size()));
}

bool FlatParameter::take_gradient(std::size_t parameter) {
  auto& gradient = parameters_[parameter].mutable_grad();
  if (!flat_gradient_.defined())
    flat_gradient_ = at::empty({flat_.numel()}, flat_.options().dtype(reduce_dtype_));
  auto place = view_of(flat_gradient_, parameter);
  const at::Tensor arrived = gradient.is_sparse() ? gradient.to_dense() : gradient;
  const double scale = 1.0 / group_->size();
  if (filled_[parameter])
    place.add_(arrived, scale);
  else if (arrived.scalar_type() != reduce_dtype_)
    place.copy_(arrived).mul_(scale);
  else
    // In double precision: a third in bfloat16 would be off by 0.2 %.
    at::mul_out(place, arrived, at::native::wrapped_scalar_tensor(scale));
  gradient.reset();
  filled_[parameter] = arrived_[parameter] = true;
  return std::all_of(arrived_.begin(), arrived_.end(), [](bool one) { return one; });
}

void FlatParameter::drop_gradients() {
  flat_gradient_.reset();
  arrived_.assign(parameters_.size(), false);
  filled_ = arrived_;
}

void FlatParameter::zero_gaps() {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!filled_[i]) continue;
    flat_gradient_.narrow(0, end, offsets_[i] - end).zero_();
    end = offsets_[i] + parameters_[i].numel();
  }
  flat_gradient_.narrow(0, end, flat_gradient_.numel() - end).zero_();
}

void FlatParameter::start_reduce() {
  zero_gaps();
  reduce_scatter_ = reduce_scatter(*group_, std::exchange(flat_gradient_, {}), tag_ + 1);
  drop_gradients();
}

void FlatParameter::finish_reduce() {
  const at::Tensor sum = std::exchange(reduce_scatter_, {})().to(shard_.scalar_type());
  auto& gradient = shard_.mutable_grad();
  if (gradient.defined())
    gradient.add_(sum);
  else
    gradient = sum;
}

std::map<std::string, at::Tensor> FlatParameter::gather(const at::Tensor& shard) const {
  at::Tensor full = shard.detach().contiguous();
  if (is_sharded()) full = all_gather(*group_, full, tag_)();
  std::map<std::string, at::Tensor> tensors;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    tensors[names_[i]] = view_of(full, i).clone(at::MemoryFormat::Contiguous);
  return tensors;
}

at::Tensor FlatParameter::shard_of(const std::map<std::string, at::Tensor>& by_name) const {
  at::Tensor full;
  std::string missing;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto found = by_name.find(names_[i]);
    if (found == by_name.end()) {
      missing = names_[i];
      continue;
    }
    const at::Tensor& tensor = found->second;
    if (tensor.sizes() != parameters_[i].sizes())
      throw std::invalid_argument(
          c10::str("share_out: expected ", names_[i], ' ', parameters_[i].sizes(), ", got ", tensor.sizes()));
    if (!full.defined()) full = at::zeros({flat_.numel()}, tensor.options().device(shard_.device()));
    view_of(full, i).copy_(tensor);
  }
  if (full.defined() && !missing.empty())
    throw std::invalid_argument("share_out: expected a tensor for " + missing +
                                " as well, because it is in a unit with " + name_);
  return full.defined() ? own_part(full).clone() : full;
}

}  // namespace ddprun::ddp

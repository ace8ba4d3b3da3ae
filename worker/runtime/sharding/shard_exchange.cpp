#include <ddprun/sharding/shard_exchange.h>

#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/flight/record_collectives.h>

namespace ddprun::ddp {
namespace {

/// Several as one.
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

void wait_for(c10::intrusive_ptr<c10d::Work>& work) {
  if (const auto started = std::exchange(work, {})) started->wait();
}

at::Tensor piece(const at::Tensor& full, int rank, int size) {
  const std::int64_t numel = full.numel() / size;
  return full.narrow(0, rank * numel, numel);
}

/// to_send(r) goes to rank r, to_fill(r) is filled with what rank r sends here. One collective to the flight
/// recorder, named as the backend's own that it stands for; of: the tensor of that.
template <typename ToSend, typename ToFill>
c10::intrusive_ptr<c10d::Work> exchange(const ProcessGroup& group, const char* op, const at::Tensor& of,
                                        int tag, ToSend&& to_send, ToFill&& to_fill) {
  return record_as_one(*group.handle(), at::kCPU, op, of, [&](c10d::Backend& backend) {
    auto works = c10::make_intrusive<Works>();
    const auto each_peer = [&](auto&& action) {
      // Each rank starts with another peer, so that not all send to one at a time.
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

}  // namespace

AllGather::AllGather(const ProcessGroup& group, at::Tensor full, at::Tensor shard, int tag)
    : full_(std::move(full)), shard_(std::move(shard)) {
  if (!full_.is_cpu()) {
    work_ = group.handle()->_allgather_base(full_, shard_);
    return;
  }
  work_ = exchange(
      group, "all_gather_into_tensor", shard_, tag, [&](int) { return shard_; },
      [&](int peer) { return piece(full_, peer, group.size()); });
  piece(full_, group.rank(), group.size()).copy_(shard_);
}

at::Tensor AllGather::wait() {
  wait_for(work_);
  shard_.reset();
  return std::exchange(full_, {});
}

ReduceScatter::ReduceScatter(const ProcessGroup& group, at::Tensor full, int tag)
    : rank_(group.rank()), full_(std::move(full)) {
  const std::int64_t numel = full_.numel() / group.size();
  if (!full_.is_cpu()) {
    received_ = at::empty({1, numel}, full_.options());
    auto output = received_[0];
    work_ = group.handle()->_reduce_scatter_base(output, full_);
    return;
  }
  received_ = at::empty({group.size(), numel}, full_.options());
  work_ = exchange(
      group, "reduce_scatter_tensor", received_[rank_], tag,
      [&](int peer) { return piece(full_, peer, group.size()); }, [&](int peer) { return received_[peer]; });
}

at::Tensor ReduceScatter::wait() {
  wait_for(work_);
  auto received = std::exchange(received_, {});
  auto full = std::exchange(full_, {});
  if (!full.is_cpu()) return received[0];
  const int size = static_cast<int>(received.size(0));
  received[rank_].copy_(piece(full, rank_, size));
  full.reset();
  auto sum = received[0].clone();
  for (int rank = 1; rank < size; ++rank) sum.add_(received[rank]);
  return sum;
}

}  // namespace ddprun::ddp

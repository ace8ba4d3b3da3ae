#include <ddprun/train/state/part_copies.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace ddprun::train {
namespace {

ddp::ProcessGroup all_of(const ddp::ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return *group.new_group(ranks);
}

at::Tensor over(std::string& bytes) {
  return at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

}  // namespace

PartCopies::PartCopies(const ddp::ProcessGroup& group, int distance, MemoryFile& file)
    : group_(all_of(group)),
      to_((group.rank() + distance) % group.size()),
      from_((group.rank() + group.size() - distance) % group.size()),
      file_(file) {}

PartCopies::~PartCopies() { abort(); }

void PartCopies::abort() { group_.handle()->getBackend(at::kCPU)->abort(); }

void PartCopies::exchange(const MemoryFile::Record& own) try {
  if (failed_) return;
  // Gloo may not notice that a connection has closed.
  const std::jthread watch([this](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any ended;
    while (!ended.wait_for(lock, stop, std::chrono::milliseconds(200), [&] { return stop.stop_requested(); }))
      if (group_.has_lost_a_rank()) return abort();
  });
  const auto head = exchange_bytes(own.head);
  file_.put({head, exchange_bytes(own.state)});
} catch (const std::exception&) {  // a rank is lost, or has no memory for its part
  failed_ = true;
  abort();  // so that the next rank does not wait either
}

std::string PartCopies::exchange_bytes(const std::string& own) {
  const auto pass = [&](const at::Tensor& sent, const at::Tensor& received) {
    std::vector<at::Tensor> out = {sent}, in = {received};
    const auto receiving = group_.handle()->recv(in, from_, /*tag=*/0);
    group_.handle()->send(out, to_, /*tag=*/0)->wait();
    receiving->wait();
  };
  const auto size = at::full({1}, static_cast<std::int64_t>(own.size()), at::kLong),
             other = at::empty_like(size);
  pass(size, other);
  std::string bytes(static_cast<std::size_t>(other.item<std::int64_t>()), '\0'), sent = own;
  pass(over(sent), over(bytes));
  return bytes;
}

}  // namespace ddprun::train

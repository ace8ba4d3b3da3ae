#include <ddprun/train/state/memory_file.h>

#include <ATen/ATen.h>
#include <torch/serialize.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include <ddprun/common/logging.h>

namespace ddprun::train {
namespace {

constexpr std::uint64_t kMagic = 0x31'53'4E'55'52'50'44'44;  // "DDPRUNS1"
constexpr off_t kFirst = 4096;                               // of the first slot's contents

bool read_at(int fd, void* bytes, std::size_t size, off_t at) {
  for (auto* to = static_cast<char*>(bytes); size > 0;) {
    const ssize_t n = ::pread(fd, to, size, at);
    if (n <= 0) return false;
    to += n, at += n, size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool write_at(int fd, const void* bytes, std::size_t size, off_t at) {
  for (const auto* from = static_cast<const char*>(bytes); size > 0;) {
    const ssize_t n = ::pwrite(fd, from, size, at);
    if (n <= 0) return false;
    from += n, at += n, size -= static_cast<std::size_t>(n);
  }
  return true;
}

std::uint32_t checksum(const MemoryFile::Record& record) {
  auto sum = ::crc32_z(0, reinterpret_cast<const Bytef*>(record.head.data()), record.head.size());
  sum = ::crc32_z(sum, reinterpret_cast<const Bytef*>(record.state.data()), record.state.size());
  return static_cast<std::uint32_t>(sum);
}

ddp::ProcessGroup all_of(const ddp::ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return *group.new_group(ranks);
}

at::Tensor over(std::string& bytes) {
  return at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte);
}

}  // namespace

/// One of the file's two slots, which both begin with this; its contents follow at `offset`. Written last.
struct MemoryFile::Slot {
  std::uint64_t magic = kMagic, sequence = 0, offset = 0, head_size = 0, state_size = 0, checksum = 0;
  int index = 0;

  std::uint64_t size() const { return head_size + state_size; }
};

MemoryFile::MemoryFile(int fd, off_t begin) : begin_(begin) {
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) fd_ = fd;
}

MemoryFile::~MemoryFile() { wait(); }

void MemoryFile::wait() const {
  if (writing_.valid()) writing_.wait();
}

bool MemoryFile::idle() const {
  const bool written =
      !writing_.valid() || writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return written && !warned_ && fd_ >= 0;
}

std::vector<MemoryFile::Slot> MemoryFile::slots() const {
  std::vector<Slot> found;
  for (int i = 0; i < 2; ++i) {
    Slot slot;
    if (read_at(fd_, &slot, sizeof slot, begin_ + i * static_cast<off_t>(sizeof slot)) &&
        slot.magic == kMagic)
      found.insert(!found.empty() && slot.sequence > found[0].sequence ? found.begin() : found.end(), slot);
  }
  return found;
}

bool MemoryFile::write_slot(const Slot& slot) {
  return write_at(fd_, &slot, sizeof slot, begin_ + slot.index * static_cast<off_t>(sizeof slot));
}

void MemoryFile::write(const std::string& head, const c10::IValue& state, const std::function<void()>& copied,
                       const std::function<void(const Record*)>& written) {
  wait();
  if (fd_ < 0 || warned_) return;
  memory_.start_over();
  auto copy = serialize::snapshot(state, memory_);
  if (copied) copied();
  writing_ = std::async(std::launch::async, [this, head, copy = std::move(copy), written] {
    Record record{head, {}};
    try {
      const auto pickled = torch::pickle_save(copy);
      record.state.assign(pickled.begin(), pickled.end());
      put(record);
    } catch (const std::exception& error) {  // for instance out of memory
      give_up(error.what());
    }
    if (written) written(warned_ ? nullptr : &record);
  });
}

void MemoryFile::give_up(const std::string& problem) {
  warned_ = true;
  log_warning(
      "the training's state no longer fits in memory beside it: " + problem +
      "; if it is needed, the run continues from what was kept until now, or from a newer checkpoint");
}

void MemoryFile::put(const Record& record) {
  if (warned_) return;
  const auto all = slots();
  const auto* before = all.empty() ? nullptr : &all[0];
  Slot slot;
  slot.sequence = before != nullptr ? before->sequence + 1 : 1;
  slot.index = before != nullptr ? 1 - before->index : 0;
  slot.head_size = record.head.size();
  slot.state_size = record.state.size();
  slot.checksum = checksum(record);
  // Before the other one if there is room, else after it.
  slot.offset = kFirst;
  if (before != nullptr && before->offset < kFirst + slot.size())
    slot.offset = before->offset + before->size();
  const auto at = begin_ + static_cast<off_t>(slot.offset);
  if (write_at(fd_, record.head.data(), record.head.size(), at) &&
      write_at(fd_, record.state.data(), record.state.size(), at + static_cast<off_t>(record.head.size())) &&
      write_slot(slot))
    return;
  give_up(errno == EFBIG ? "it is larger than the file size limit (ulimit -f) allows" : std::strerror(errno));
}

std::optional<MemoryFile::Record> MemoryFile::contents(const Slot& slot) const {
  Record record;
  record.head.resize(slot.head_size);
  record.state.resize(slot.state_size);
  const auto at = begin_ + static_cast<off_t>(slot.offset);
  if (!read_at(fd_, record.head.data(), record.head.size(), at) ||
      !read_at(fd_, record.state.data(), record.state.size(), at + static_cast<off_t>(record.head.size())))
    return std::nullopt;
  if (checksum(record) != slot.checksum) return std::nullopt;
  return record;
}

std::optional<MemoryFile::Record> MemoryFile::read() const {
  if (fd_ < 0) return std::nullopt;
  const auto all = slots();
  return all.empty() ? std::nullopt : contents(all[0]);
}

std::vector<std::string> MemoryFile::heads() const {
  wait();
  std::vector<std::string> heads;
  if (fd_ < 0) return heads;
  for (const Slot& slot : slots())
    if (const auto record = contents(slot)) heads.push_back(record->head);
  return heads;
}

void MemoryFile::forget(const std::string& head) {
  for (Slot slot : slots()) {
    const auto record = contents(slot);
    if (record && record->head != head) continue;
    slot.magic = 0;
    write_slot(slot);
  }
}

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

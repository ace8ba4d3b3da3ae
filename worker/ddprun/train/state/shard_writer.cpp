#include <ddprun/train/state/shard_writer.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/group/collectives.h>
#include <ddprun/serialize/portable_value.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr auto kChunk = static_cast<std::size_t>(kShardChunk);

fs::path file_of(const fs::path& folder, int rank) { return folder / ("rank-" + std::to_string(rank)); }

std::string key_of(std::int64_t count, int rank) {
  return std::to_string(count) + "/" + std::to_string(rank);
}

/// Reads the file back from the disk.
void verify(const fs::path& written, const std::vector<std::uint32_t>& expected) {
  const auto fd = open_regular_file(written);
  std::string chunk;
  std::size_t at = 0;
  for (const auto sum : expected) {
    chunk.resize(kChunk);
    chunk.resize(read_at(fd, at, chunk.data(), kChunk, written));
    at += chunk.size();
    if (crc32_of(chunk) != sum) throw IoError(written, "was not written as it should be: CRC error");
  }
}

}  // namespace

ShardWriter::ShardWriter(const ddp::ProcessGroup& group)
    : rank_(group.rank()),
      size_(group.size()),
      store_(c10::make_intrusive<c10d::PrefixStore>("shards", group.handle()->getStore()->clone())) {}

void ShardWriter::write(const fs::path& folder, const std::vector<at::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  if (thread_.joinable()) thread_.join();
  if (++count_ > 1 && rank_ == 0)  // it has been read, or rank 0 would not be here
    for (int rank = 0; rank < size_; ++rank) store_->deleteKey(key_of(count_ - 1, rank));
  folder_ = folder;
  std::size_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.nbytes();
  most_queued_ = std::max(kChunk, bytes / 8);
  all_queued_ = false;
  thread_ = std::jthread(&ShardWriter::run, this, file_of(folder, rank_), key_of(count_, rank_));
  for (const auto& tensor : tensors) copy(tensor.detach().contiguous().view({-1}));
  if (!chunk_.empty()) push(std::exchange(chunk_, {}));
  const std::lock_guard lock(mutex_);
  all_queued_ = true;
  changed_.notify_all();
}

void ShardWriter::copy(const at::Tensor& tensor) {
  const auto element = tensor.element_size();
  for (std::int64_t done = 0; done < tensor.numel();) {
    const auto room = static_cast<std::int64_t>(std::max<std::size_t>(1, (kChunk - chunk_.size()) / element));
    const auto part = tensor.narrow(0, done, std::min(room, tensor.numel() - done)).to(at::kCPU);
    if (chunk_.capacity() < kChunk) chunk_.reserve(kChunk + element);
    chunk_.append(static_cast<const char*>(part.const_data_ptr()), part.nbytes());
    done += part.numel();
    if (chunk_.size() < kChunk) continue;
    auto rest = chunk_.substr(kChunk);  // of an element
    chunk_.resize(kChunk);
    push(std::exchange(chunk_, std::move(rest)));
  }
}

void ShardWriter::push(std::string chunk) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queued_ == 0 || queued_ + chunk.size() <= most_queued_; });
  queued_ += chunk.size();
  queue_.push_back(std::move(chunk));
  changed_.notify_all();
}

/// The next chunk, which counts as queued until the next call; empty after the last one.
std::string ShardWriter::pop() {
  std::unique_lock lock(mutex_);
  queued_ -= std::exchange(popped_, 0);
  changed_.notify_all();
  changed_.wait(lock, [&] { return !queue_.empty() || all_queued_; });
  if (queue_.empty()) return {};
  auto chunk = std::move(queue_.front());
  queue_.pop_front();
  popped_ = chunk.size();
  return chunk;
}

/// returns  the checksums
std::vector<std::uint32_t> ShardWriter::write_file(const fs::path& path) {
  create_folders(path.parent_path());
  std::vector<std::uint32_t> sums;
  replace_file_atomic(path, [&](const fs::path& temporary) {
    serialize::OutputFile file(temporary);
    if (file.error() != 0) throw IoError(path, "cannot create", file.error());
    for (auto chunk = pop(); !chunk.empty(); chunk = pop()) {
      sums.push_back(crc32_of(chunk));
      file.append(chunk.data(), chunk.size());
    }
    file.settle();
    if (file.error() != 0) throw IoError(path, "cannot write", file.error());
    verify(temporary, sums);
  });
  return sums;
}

/// Runs on the thread.
void ShardWriter::run(const fs::path& file, const std::string& key) {
  json result;  // the checksums, or [error number, message]
  try {
    result["checksums"] = write_file(file);
  } catch (const IoError& error) {
    result["failed"] = {error.error_number, error.what()};
  } catch (const std::exception& error) {
    result["failed"] = {0, error.what()};
  }
  while (!pop().empty()) continue;
  try {
    store_->set(key, result.dump(-1, ' ', false, json::error_handler_t::replace));
  } catch (const std::exception&) {  // rank 0 is gone
  }
}

std::function<ShardWriter::Checksums(const std::function<bool()>&)> ShardWriter::finished() const {
  return [store = store_, size = size_, count = count_, folder = folder_](const auto& give_up) {
    Checksums checksums;
    for (int rank = 0; rank < size; ++rank) {
      const auto file = file_of(folder, rank);
      while (!store->check({key_of(count, rank)})) {
        if (give_up()) throw IoError(file, "was not finished");
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      const auto result = json::parse(store->get_to_str(key_of(count, rank)));
      if (result.contains("failed")) {
        const auto [error, message] = result["failed"].get<std::pair<int, std::string>>();
        const auto who = "rank " + std::to_string(rank);
        throw error != 0 ? IoError(file, who + " cannot write it", error)
                         : IoError(file, who + ": " + message);
      }
      std::error_code missing;
      if (count == 1 && !fs::exists(file, missing))
        log_warning("rank " + std::to_string(rank) + " has its part of the checkpoints, " + file.string() +
                    ", on a disk that rank 0 cannot read; to resume, start a rank on the same host again");
      checksums.push_back(result["checksums"]);
    }
    return checksums;
  };
}

ShardHolders find_shards(const ddp::ProcessGroup& group, const fs::path& folder) {
  std::string own;
  for (const auto& shards : shard_folders(ddp::broadcast_from_rank_0(group, folder.string()))) {
    std::error_code error;
    for (fs::directory_iterator file(shards, error), end; !error && file != end; file.increment(error))
      own += (shards.filename() / file->path().filename()).string() + "\n";
  }
  ShardHolders holders;
  int rank = 0;
  for (const auto& text : ddp::all_gather(group, own)) {
    for (const auto& name : split(text, '\n')) holders[name].insert(rank);
    ++rank;
  }
  return holders;
}

bool verify_shards(const ddp::ProcessGroup& group, const fs::path& checkpoint, const std::string& shards,
                   const ShardHolders& holders) {
  const auto path = ddp::broadcast_from_rank_0(group, checkpoint.string());
  if (path.empty()) return false;
  const auto index = ddp::broadcast_from_rank_0(group, shards);
  std::string damage;  // "FILE\nMESSAGE"
  try {
    ShardReader(path, index).verify(holders, group.rank());
  } catch (const IoError& error) {
    damage = error.path.string() + "\n" + std::string(error.what()).substr(error.path.string().size() + 2);
    if (group.rank() > 0)
      damage += " (on the disk of rank " + std::to_string(group.rank()) + ", host " + host_name() + ")";
  }
  for (const auto& text : ddp::all_gather(group, damage))
    if (const auto end = text.find('\n'); group.rank() == 0 && end != std::string::npos)
      throw IoError(text.substr(0, end), text.substr(end + 1));
  return true;
}

void check_holders(const ddp::ProcessGroup& group, const fs::path& checkpoint, const ShardIndex& index,
                   const ShardHolders& holders, bool all) {
  const auto files = static_cast<int>(index.checksums.size());
  all = all || files != group.size();
  for (int number = 0; number < files; ++number) {
    const auto name = index.folder + "/rank-" + std::to_string(number);
    const auto found = holders.find(name);
    for (int rank = 0; rank < group.size(); ++rank)
      if ((all || rank == number) && (found == holders.end() || !found->second.contains(rank)))
        throw IoError(
            checkpoint.parent_path() / name,
            "rank " + std::to_string(rank) + " needs this part of the checkpoint, but its host does " +
                "not have it; put it on a disk that all share, or, with --fsdp and as many ranks as " +
                "before, start each rank on the host where it was");
  }
}

}  // namespace ddprun::train

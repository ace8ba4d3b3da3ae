#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include <ddprun/group/process_group.h>
#include <ddprun/group/store.h>

namespace ddprun::train {

/// Writes this rank's shards of a checkpoint, while the other ranks write theirs. A thread writes chunks that
/// the caller copies into a buffer of at most an eighth of the shards: memory stays bounded, and the caller
/// waits for the disk's cache only for what does not fit. All ranks make the same calls.
class ShardWriter {
 public:
  explicit ShardWriter(const ddp::ProcessGroup& group);
  /// Waits for the file.
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// Returns once the tensors may change again. The file is written in the background, flushed to disk, and
  /// read back to check its CRC-32. Errors show in finished().
  ///
  /// folder   the same on every rank, which creates it if necessary
  /// tensors  contiguous, on any device
  void write(const std::filesystem::path& folder, const std::vector<at::Tensor>& tensors);

  /// On any thread of one rank: waits until all ranks have finished the write() that was last when this was
  /// called, and returns their CRC-32s, by rank and chunk.
  ///
  /// give_up  asked now and then; true ends the wait
  /// throws   IoError if a rank's write failed, or its file cannot be seen from here
  using Checksums = std::vector<std::vector<std::uint32_t>>;
  std::function<Checksums(const std::function<bool()>& give_up)> finished() const;

 private:
  void copy(const at::Tensor& tensor);
  void push(std::string chunk);
  std::string pop();
  void release(std::string chunk);
  void run(const std::filesystem::path& file, const std::string& key);
  std::string write_file(const std::filesystem::path& file);

  int rank_, size_;
  ddp::StorePtr store_;
  std::filesystem::path folder_;
  std::int64_t count_ = 0;  // of write()s
  std::string chunk_;       // being filled
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> queue_;
  std::size_t queued_ = 0, most_queued_ = 0;  // bytes
  bool all_queued_ = false;
  std::thread thread_;
};

}  // namespace ddprun::train

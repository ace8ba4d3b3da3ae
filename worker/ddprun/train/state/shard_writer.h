#pragma once

#include <condition_variable>
#include <deque>
#include <thread>

#include <ddprun/group/process_group.h>
#include <ddprun/group/store.h>
#include <ddprun/train/state/shard_index.h>

namespace ddprun::train {

/// Writes this rank's shards of a checkpoint, while the other ranks write theirs. A thread writes chunks that
/// the caller copies into a buffer of at most an eighth of the shards: memory stays bounded, and the caller
/// waits for the page cache only for what does not fit. All ranks make the same calls.
class ShardWriter {
 public:
  /// The destructor waits for the file.
  explicit ShardWriter(const ddp::ProcessGroup& group);

  /// Returns once the tensors may change again. The file is written in the background, flushed to disk, and
  /// read back to check its CRC-32. finished() reports errors.
  ///
  /// folder   the same on every rank, which creates it if necessary
  /// tensors  contiguous, on any device
  void write(const std::filesystem::path& folder, const std::vector<at::Tensor>& tensors);

  /// On any thread of one rank: waits until all ranks have finished the most recent write() before this call,
  /// and returns their CRC-32s, by rank and chunk.
  ///
  /// give_up  polled; true ends the wait
  /// throws   IoError if a rank's write failed
  using Checksums = std::vector<std::vector<std::uint32_t>>;
  std::function<Checksums(const std::function<bool()>& give_up)> finished() const;

 private:
  void copy(const at::Tensor& tensor);
  void push(std::string chunk);
  std::string pop();
  void run(const std::filesystem::path& file, const std::string& key);
  std::vector<std::uint32_t> write_file(const std::filesystem::path& file);

  int rank_, size_;
  ddp::StorePtr store_;
  std::filesystem::path folder_;
  std::int64_t count_ = 0;  // of write()s
  std::string chunk_;       // filling up
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> queue_;
  std::size_t queued_ = 0, most_queued_ = 0, popped_ = 0;  // bytes
  bool all_queued_ = false;
  std::jthread thread_;  // last: it uses the members above
};

// -- resuming, perhaps without a shared disk; every rank calls these --

/// folder  of the checkpoints; rank 0's counts
ShardHolders find_shards(const ddp::ProcessGroup& group, const std::filesystem::path& folder);

/// Checks all files of a sharded checkpoint, each on a rank that has it. Rank 0 passes the checkpoint, or an
/// empty path to end; what the others pass is ignored.
///
/// shards   its TrainingState::shards
/// returns  false at the end
/// throws   IoError naming the first damaged file, and its rank and host if rank 0 does not see it; only on
///          rank 0
bool verify_shards(const ddp::ProcessGroup& group, const std::filesystem::path& checkpoint,
                   const std::string& shards, const ShardHolders& holders);

/// all  whether a rank needs more than its own file, which is always so if the number of ranks differs
/// throws  IoError naming a file and the rank that needs it but has it on none of its host's disks
void check_holders(const ddp::ProcessGroup& group, const std::filesystem::path& checkpoint,
                   const ShardIndex& index, const ShardHolders& holders, bool all);

}  // namespace ddprun::train

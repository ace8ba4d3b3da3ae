#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <ddprun/group/shared_memory.h>

namespace ddprun::ddp {

/// Sums a tensor over the ranks of one host through shared memory. Piece by piece, each rank copies its data
/// there and adds up all copies; many ranks share the adding, and each copies the sum. The last rank to
/// arrive never waits. Adds in rank order, so that every rank gets the same result.
///
/// Only sleep() blocks. One call at a time; all ranks make the same calls in the same order.
class SharedSum {
 public:
  /// The memory that it needs.
  static std::size_t bytes(int size);

  SharedSum(std::unique_ptr<SharedMemory> memory, int rank, int size);

  /// tensor  dense, contiguous, on the CPU; gets the sum
  /// number  of the call: detects ranks that are out of step
  void begin(const at::Tensor& tensor, std::uint64_t number);

  /// Continues the call as far as the other ranks allow. True once it is finished.
  /// throws  c10::Error, on every rank, if they did not begin the same call; they may begin another
  bool advance();

  /// Why an unfinished call cannot finish, such as "rank 1 has ended"; "" if it can.
  std::string problem() const;
  std::string awaited_rank() const;  ///< "rank 1"

  /// Sleeps until a rank has acted since posts() returned that number, for at most 20 ms.
  void sleep(std::uint32_t posts) const;
  std::uint32_t posts() const;

  /// From any thread: unfinished calls, here and on the other ranks, can no longer finish.
  void leave();
  bool has_left() const;

 private:
  struct Tensor;
  struct Rank;
  struct Board;

  Board& board() const;
  Rank& rank(int of) const;
  std::byte* place(std::size_t index) const;
  std::byte* piece(int of) const;  // one rank's
  std::byte* shared_sum() const;   // with many ranks
  bool is_few() const;
  void put();
  void post();
  bool all_have_put() const;
  void add_up_together(std::size_t bytes);
  void add_up(std::byte* target, std::size_t begin, std::size_t end) const;
  bool is_added_up() const;
  void check_same_call();
  std::size_t piece_bytes() const;

  const std::unique_ptr<SharedMemory> memory_;
  const int rank_, size_;
  at::Tensor tensor_;
  std::size_t offset_ = 0;  // of the piece within the tensor
  std::uint64_t calls_ = 0;
  std::uint64_t pieces_ = 0;  // copied by this rank in all calls
};

}  // namespace ddprun::ddp

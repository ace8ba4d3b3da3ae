#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <ddprun/group/shared_memory.h>

namespace ddprun::ddp {

/// The sum of a tensor over the ranks of one host, through memory that they share. Piece by piece, each rank
/// puts its own there, then adds up all of them; where there are many ranks, those that are awake add them up
/// once, together, and each takes the sum. Who comes last waits for nobody. Elements are added in the order
/// of the ranks, so that every rank gets the same, whoever adds.
///
/// Nothing here blocks but sleep(). One call at a time; all ranks make the same calls in the same order.
class SharedSum {
 public:
  /// What it needs.
  static std::size_t bytes(int size);

  SharedSum(std::unique_ptr<SharedMemory> memory, int rank, int size);

  /// Begins a call.
  /// tensor  dense, contiguous, on the CPU; gets the sum
  /// number  of the call, by which ranks that have lost step are told
  void begin(const at::Tensor& tensor, std::uint64_t number);

  /// Goes on with the call, as far as the other ranks have come.
  ///
  /// returns  whether it is finished
  /// throws   c10::Error, on every rank, if they did not begin the same call; they may begin another
  bool advance();

  /// What this rank waits for if its call is not finished: "" or why it waits in vain, "rank 1 has ended".
  std::string why_in_vain() const;
  std::string whom_it_waits_for() const;  ///< "rank 1"

  /// Sleeps until a rank has done something since posts() gave that number, 20 ms at most.
  void sleep(std::uint32_t posts) const;
  std::uint32_t posts() const;

  /// From any thread: calls here and there that are not finished are in vain from now on.
  void leave();
  bool has_left() const;

 private:
  struct Tensor;
  struct Rank;
  struct Board;

  Board& board() const;
  Rank& rank(int of) const;
  std::byte* place(std::size_t index) const;
  std::byte* piece(int of) const;  // that a rank has put there
  std::byte* shared_sum() const;   // of many ranks
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
  std::size_t offset_ = 0;  // of the piece, in the tensor
  std::uint64_t calls_ = 0;
  std::uint64_t pieces_ = 0;  // that this rank has put there, of all calls
};

}  // namespace ddprun::ddp

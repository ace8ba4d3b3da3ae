#include <ddprun/group/shared_sum.h>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>

namespace ddprun::ddp {
namespace {

// A piece stays in the cache between its passes; a rank adds up one unit at a time.
constexpr std::size_t kUnitBytes = std::size_t{64} << 10, kUnits = 16, kPieceBytes = kUnits * kUnitBytes;

// Up to this many ranks, each adds up everything itself: they wait for each other once per piece, not twice.
// Each then needs a second place for its next piece, while others may still read the previous one.
constexpr int kFew = 4;

std::size_t places(int size) { return static_cast<std::size_t>(size <= kFew ? 2 * size : size + 1); }

}  // namespace

/// A call's tensor, to compare between ranks.
struct SharedSum::Tensor {
  std::uint64_t number;
  std::int64_t elements;
  c10::ScalarType dtype;
  bool operator==(const Tensor&) const = default;
};

/// What a rank tells the others; each on a separate cache line.
struct alignas(64) SharedSum::Rank {
  std::atomic<std::uint64_t> pieces;  // copied there by the rank
  std::atomic<bool> left;
  Tensor tensors[2];  // of its calls, alternating: it may begin the next one while others look at this one
};

/// Counts from the beginning of the group, starting at zero.
struct alignas(64) SharedSum::Board {
  std::atomic<std::uint32_t> posts;  // the ranks' actions; they sleep on it
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::uint64_t> units_taken, units_added;  // kUnits per piece; a short piece has empty ones
};

std::size_t SharedSum::bytes(int size) {
  const auto ranks = static_cast<std::size_t>(size);
  return sizeof(Board) + ranks * sizeof(Rank) + places(size) * kPieceBytes;
}

SharedSum::SharedSum(std::unique_ptr<SharedMemory> memory, int rank, int size)
    : memory_(std::move(memory)), rank_(rank), size_(size) {}

SharedSum::Board& SharedSum::board() const { return *reinterpret_cast<Board*>(memory_->data()); }
SharedSum::Rank& SharedSum::rank(int of) const {
  return reinterpret_cast<Rank*>(memory_->data() + sizeof(Board))[of];
}

std::byte* SharedSum::place(std::size_t index) const {
  const auto header = sizeof(Board) + static_cast<std::size_t>(size_) * sizeof(Rank);
  return memory_->data() + header + index * kPieceBytes;
}

std::byte* SharedSum::piece(int of) const {
  const auto rank = static_cast<std::size_t>(of);
  return place(is_few() ? 2 * rank + pieces_ % 2 : rank);
}

std::byte* SharedSum::shared_sum() const { return place(static_cast<std::size_t>(size_)); }
bool SharedSum::is_few() const { return size_ <= kFew; }
std::size_t SharedSum::piece_bytes() const { return std::min(kPieceBytes, tensor_.nbytes() - offset_); }

void SharedSum::begin(const at::Tensor& tensor, std::uint64_t number) {
  tensor_ = tensor;
  offset_ = 0;
  rank(rank_).tensors[++calls_ % 2] = {number, tensor.numel(), tensor.scalar_type()};
  put();
}

bool SharedSum::advance() {
  while (all_have_put()) {
    if (offset_ == 0) check_same_call();
    auto* const target = static_cast<std::byte*>(tensor_.mutable_data_ptr()) + offset_;
    if (is_few()) {
      // By units, each too short for OpenMP threads.
      for (std::size_t begin = 0; begin < piece_bytes(); begin += kUnitBytes)
        add_up(target + begin, begin, std::min(begin + kUnitBytes, piece_bytes()));
    } else {
      add_up_together(piece_bytes());
      if (!is_added_up()) return false;
      std::copy_n(shared_sum(), piece_bytes(), target);
    }
    offset_ += kPieceBytes;
    if (offset_ >= tensor_.nbytes()) {
      tensor_.reset();
      return true;
    }
    put();
  }
  return false;
}

/// The place is free: few ranks have all put the previous piece, after reading the one before; for many
/// ranks, all parts of the previous piece have been read, since its sum exists.
void SharedSum::put() {
  ++pieces_;
  const auto* const own = static_cast<const std::byte*>(tensor_.const_data_ptr());
  std::copy_n(own + offset_, piece_bytes(), piece(rank_));
  rank(rank_).pieces = pieces_;
  if (all_have_put()) post();  // if several come last, at least one sees all
}

void SharedSum::post() {
  board().posts.fetch_add(1);
  if (board().sleepers.load() > 0)
    ::syscall(SYS_futex, &board().posts, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool SharedSum::all_have_put() const {
  for (int of = 0; of < size_; ++of)
    if (rank(of).pieces < pieces_) return false;
  return true;
}

/// Adds up the units of the piece's first bytes that no rank has taken yet. The sum's place is free: all have
/// put the next piece, after taking the last sum.
void SharedSum::add_up_together(std::size_t bytes) {
  const auto end = pieces_ * kUnits;
  for (auto unit = board().units_taken.load(); unit < end;) {
    if (!board().units_taken.compare_exchange_weak(unit, unit + 1)) continue;
    const auto begin = unit % kUnits * kUnitBytes;
    if (begin < bytes) add_up(shared_sum() + begin, begin, std::min(begin + kUnitBytes, bytes));
    if (board().units_added.fetch_add(1) + 1 == end) post();
    ++unit;
  }
}

void SharedSum::add_up(std::byte* target, std::size_t begin, std::size_t end) const {
  const at::NoGradGuard no_grad;
  const auto elements = static_cast<std::int64_t>((end - begin) / tensor_.itemsize());
  const auto view = [&](std::byte* data) {
    return at::from_blob(data, {elements}, at::TensorOptions(tensor_.scalar_type()));
  };
  auto sum = view(target);
  at::add_out(sum, view(piece(0) + begin), view(piece(1) + begin));
  for (int of = 2; of < size_; ++of) sum.add_(view(piece(of) + begin));
}

bool SharedSum::is_added_up() const { return is_few() || board().units_added >= pieces_ * kUnits; }

void SharedSum::check_same_call() {
  const auto& here = rank(rank_).tensors[calls_ % 2];
  for (int of = 0; of < size_; ++of) {
    const auto& there = rank(of).tensors[calls_ % 2];
    if (here == there) continue;
    if (!is_few()) add_up_together(0);  // the piece counts as added
    tensor_.reset();
    TORCH_CHECK(false, "all_reduce: expected the same call from every rank, got #", there.number, " of ",
                there.elements, " ", c10::toString(there.dtype), " from rank ", of, " and #", here.number,
                " of ", here.elements, " ", c10::toString(here.dtype), " from rank ", rank_);
  }
}

std::string SharedSum::problem() const {
  if (has_left()) return "the process group was ended";
  for (int of = 0; of < size_; ++of) {
    if (of == rank_) continue;
    // In this order, because it may put its piece and leave in between.
    const bool left = rank(of).left, ended = memory_->has_ended(of);
    if (!left && !ended) continue;
    const bool has_put = rank(of).pieces >= pieces_;
    if (has_put && is_added_up()) continue;
    // A rank that put its piece may have ended while adding; one that only left finishes adding.
    if (ended) return "rank " + std::to_string(of) + " has ended";
    if (!has_put) return "rank " + std::to_string(of) + " has left the process group";
  }
  return "";
}

std::string SharedSum::awaited_rank() const {
  for (int of = 0; of < size_; ++of)
    if (rank(of).pieces < pieces_) return "rank " + std::to_string(of);
  return "another rank";
}

void SharedSum::sleep(std::uint32_t posts) const {
  const timespec time{0, 20'000'000};
  board().sleepers.fetch_add(1);
  ::syscall(SYS_futex, &board().posts, FUTEX_WAIT, posts, &time, nullptr, 0);
  board().sleepers.fetch_sub(1);
}

std::uint32_t SharedSum::posts() const { return board().posts; }

void SharedSum::leave() {
  rank(rank_).left = true;
  post();
}

bool SharedSum::has_left() const { return rank(rank_).left; }

}  // namespace ddprun::ddp

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::launcher {

/// The end of a worker's output, stdout and stderr as they came, for later readers. Bounded.
class RecentOutput {
 public:
  explicit RecentOutput(std::size_t kept = std::size_t{8} << 10) : kept_(kept) {}

  void add(std::string_view bytes) {
    total_ += bytes.size();
    if (bytes.size() > kept_) bytes.remove_prefix(bytes.size() - kept_);
    bytes_ += bytes;
    if (bytes_.size() > 2 * kept_) bytes_.erase(0, bytes_.size() - kept_);
  }
  /// How many bytes it wrote in total.
  std::uint64_t total() const { return total_; }
  /// What is left of the bytes after the first `seen` ones.
  std::string_view after(std::uint64_t seen) const {
    const std::uint64_t fresh = total_ - (seen < total_ ? seen : total_);
    return std::string_view(bytes_).substr(
        fresh < bytes_.size() ? bytes_.size() - static_cast<std::size_t>(fresh) : 0);
  }

 private:
  std::size_t kept_;
  std::string bytes_;  // at most twice kept_
  std::uint64_t total_ = 0;
};

}  // namespace ddprun::launcher

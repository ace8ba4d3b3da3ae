#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::launcher {

/// The end of what a worker wrote, stdout and stderr as they came, for those who look later. Bounded.
class RecentOutput {
 public:
  static constexpr std::size_t kKept = std::size_t{8} << 10;

  void add(std::string_view bytes) {
    total_ += bytes.size();
    if (bytes.size() > kKept) bytes.remove_prefix(bytes.size() - kKept);
    bytes_ += bytes;
    if (bytes_.size() > 2 * kKept) bytes_.erase(0, bytes_.size() - kKept);
  }
  /// How many bytes it wrote in all.
  std::uint64_t total() const { return total_; }
  /// What is left of those after the first `seen` ones.
  std::string_view after(std::uint64_t seen) const {
    const std::uint64_t fresh = total_ - (seen < total_ ? seen : total_);
    return std::string_view(bytes_).substr(
        fresh < bytes_.size() ? bytes_.size() - static_cast<std::size_t>(fresh) : 0);
  }

 private:
  std::string bytes_;  // at most twice kKept
  std::uint64_t total_ = 0;
};

}  // namespace ddprun::launcher

#pragma once

#include <zlib.h>

#include <cstddef>
#include <filesystem>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun::data {

/// Reads a plain or gzip file front to back and detects from its content which one it is. Refuses a gzip file
/// that is truncated, has a wrong checksum or is followed by anything but another gzip file. All functions
/// throw IoError naming the file.
class GzReader {
 public:
  explicit GzReader(const std::filesystem::path& path);
  ~GzReader();
  GzReader(const GzReader&) = delete;
  GzReader& operator=(const GzReader&) = delete;

  /// Reads up to size bytes of the content. returns  how many; fewer only at the file's end
  std::size_t read(void* buffer, std::size_t size);

 private:
  bool refill();
  std::size_t copy(unsigned char* to, std::size_t size);
  std::size_t inflate(unsigned char* to, std::size_t size);
  [[noreturn]] void fail(const char* reason) const;

  std::filesystem::path path_;
  UniqueFd fd_;
  std::vector<unsigned char> buffer_;
  z_stream stream_{};  // its input is the rest of buffer_, even for plain files
  bool is_gzip_ = false;
  bool in_member_ = false;  // between a gzip member's header and the end of its trailer
};

}  // namespace ddprun::data

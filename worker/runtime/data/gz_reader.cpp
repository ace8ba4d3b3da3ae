#include <ddprun/data/gz_reader.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include <ddprun/common/errors.h>

namespace ddprun::data {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 17;
constexpr std::size_t kMaxStep = std::size_t{1} << 30;  // zlib counts in unsigned int
constexpr int kGzipOnly = 16 + MAX_WBITS;

}  // namespace

GzReader::GzReader(const std::filesystem::path& path)
    : path_(path), fd_(open_regular_file(path)), buffer_(kBufferBytes) {
  refill();
  is_gzip_ = stream_.avail_in >= 2 && buffer_[0] == 0x1f && buffer_[1] == 0x8b;
  if (is_gzip_ && ::inflateInit2(&stream_, kGzipOnly) != Z_OK) throw std::bad_alloc();
  in_member_ = is_gzip_;
}

GzReader::~GzReader() {
  if (is_gzip_) ::inflateEnd(&stream_);
}

/// Refills the empty buffer. returns  false at the file's end
bool GzReader::refill() {
  ssize_t count = 0;
  do count = ::read(fd_.get(), buffer_.data(), buffer_.size());
  while (count < 0 && errno == EINTR);
  if (count < 0) throw IoError(path_, "cannot read", errno);
  stream_.next_in = buffer_.data();
  stream_.avail_in = static_cast<uInt>(count);
  return count > 0;
}

std::size_t GzReader::read(void* buffer, std::size_t size) {
  auto* to = static_cast<unsigned char*>(buffer);
  std::size_t done = 0;
  while (done < size) {
    const auto wanted = std::min(size - done, kMaxStep);
    const auto got = is_gzip_ ? inflate(to + done, wanted) : copy(to + done, wanted);
    if (got == 0) break;
    done += got;
  }
  return done;
}

/// Some bytes of a plain file; 0 at its end.
std::size_t GzReader::copy(unsigned char* to, std::size_t size) {
  if (stream_.avail_in == 0 && !refill()) return 0;
  const auto count = std::min<std::size_t>(size, stream_.avail_in);
  std::memcpy(to, stream_.next_in, count);
  stream_.next_in += count;
  stream_.avail_in -= static_cast<uInt>(count);
  return count;
}

/// Decompresses; returns fewer bytes than requested only at the verified end.
std::size_t GzReader::inflate(unsigned char* to, std::size_t size) {
  stream_.next_out = to;
  stream_.avail_out = static_cast<uInt>(size);
  while (stream_.avail_out > 0) {
    if (stream_.avail_in == 0 && !refill()) {
      if (in_member_) fail("it is cut");
      break;
    }
    if (!in_member_) ::inflateReset(&stream_);
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END) fail(stream_.msg != nullptr ? stream_.msg : "damaged");
    in_member_ = status != Z_STREAM_END;
  }
  return size - stream_.avail_out;
}

void GzReader::fail(const char* reason) const {
  throw IoError(path_, std::string("is not a whole gzip file (") + reason + ")");
}

}  // namespace ddprun::data

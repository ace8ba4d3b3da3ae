#include <ddprun/serialize/output_file.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace ddprun::serialize {

OutputFile::OutputFile(const std::filesystem::path& path)
    : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644)),
      error_(fd_ ? 0 : errno) {}

std::size_t OutputFile::append(const void* bytes, std::size_t count) {
  const char* at = static_cast<const char*>(bytes);
  for (std::size_t left = count; left > 0 && error_ == 0;) {
    const auto written = ::write(fd_.get(), at, left);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) error_ = errno;
    if (written < 0) break;
    at += written;
    left -= static_cast<std::size_t>(written);
  }
  return count;
}

void OutputFile::settle() {
  // Some file systems have no fsync (EINVAL).
  if (error_ == 0 && ::fsync(fd_.get()) != 0 && errno != EINVAL) error_ = errno;
  if (error_ == 0) ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace ddprun::serialize

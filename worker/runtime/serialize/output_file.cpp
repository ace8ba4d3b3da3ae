#include <ddprun/serialize/output_file.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace ddprun::serialize {

OutputFile::OutputFile(const std::filesystem::path& path)
    : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644)),
      error_(fd_ ? 0 : errno) {}

std::size_t OutputFile::append(const void* bytes, std::size_t count) {
  if (error_ == 0 && !write_all(fd_.get(), {static_cast<const char*>(bytes), count})) error_ = errno;
  return count;
}

void OutputFile::settle() {
  // Some file systems have no fsync (EINVAL).
  if (error_ == 0 && ::fsync(fd_.get()) != 0 && errno != EINVAL) error_ = errno;
  if (error_ == 0) ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace ddprun::serialize

#include <ddprun/report/append_file.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>

namespace ddprun::report {

AppendFile::AppendFile(std::filesystem::path path, std::string_view begin, bool keep_until_written)
    : path_(std::move(path)) {
  if (keep_until_written) write_file_atomic(path_, begin);
  file_ = UniqueFd(
      ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (keep_until_written ? 0 : O_TRUNC), 0644));
  if (!file_) throw IoError(path_, "cannot create", errno);
  if (keep_until_written) {
    size_ = static_cast<std::int64_t>(begin.size());
    ::lseek(file_.get(), size_, SEEK_SET);
  } else {
    append(begin);
  }
}

void AppendFile::append(std::string_view record) {
  auto rest = record;
  while (!rest.empty()) {
    const ssize_t written = ::write(file_.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      if (::ftruncate(file_.get(), size_) == 0) ::lseek(file_.get(), size_, SEEK_SET);
      throw IoError(path_, "cannot write", error);
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  size_ += static_cast<std::int64_t>(record.size());
}

}  // namespace ddprun::report

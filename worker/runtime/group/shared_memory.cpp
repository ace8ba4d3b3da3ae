#include <ddprun/group/shared_memory.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace ddprun::ddp {
namespace {

constexpr const char* kNo = "no";

/// Identifies this group's memory; stored at its end.
using Mark = std::array<unsigned char, 16>;

UniqueFd open_process(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

std::byte* map(int fd, std::size_t bytes) {
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

/// Rank 0's part. Empty if the system forbids it.
UniqueFd make_file(std::size_t bytes, Mark& mark) {
  UniqueFd file(::memfd_create("ddprun", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool made = file && ::getrandom(mark.data(), mark.size(), 0) == static_cast<ssize_t>(mark.size()) &&
                    ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 &&
                    ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  return made ? std::move(file) : UniqueFd();
}

/// Identifies the PID namespace.
std::string process_space() {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/ns/pid", none).string();
}

/// Another rank's part: opens it through rank 0's process, which must be on this host and owned by this user.
UniqueFd open_file(pid_t pid, int fd) {
  const auto path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  std::error_code none;
  if (std::filesystem::read_symlink(path, none).string().rfind("/memfd:ddprun", 0) != 0) return {};
  return UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
}

std::string to_text(const Mark& mark) {
  std::string text;
  for (const auto byte : mark) text += std::to_string(byte) + ",";
  return text;
}

}  // namespace

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

bool SharedMemory::has_ended(int rank) const {
  const auto& process = processes_[static_cast<std::size_t>(rank)];
  pollfd poll{process.descriptor.get(), POLLIN, 0};  // nothing is known without a descriptor
  return process.gone || ::poll(&poll, 1, 0) > 0;
}

std::unique_ptr<SharedMemory> share_memory(const StorePtr& base, int rank, int size, std::size_t bytes,
                                           bool wanted) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("shared_memory", base);
  const auto key = [](int of) { return "rank/" + std::to_string(of); };
  std::unique_ptr<SharedMemory> memory(new SharedMemory);
  memory->bytes_ = bytes + sizeof(Mark);
  const auto mark_at = [&] { return memory->data_ + bytes; };

  Mark mark{};
  UniqueFd file;
  bool right = rank == 0;  // rather than another file that now has that path
  if (rank == 0) {
    if (wanted) file = make_file(memory->bytes_, mark);
    if (file && (memory->data_ = map(file.get(), memory->bytes_)) != nullptr)
      std::memcpy(mark_at(), mark.data(), mark.size());
    store->set("file", memory->data_ == nullptr ? kNo
                                                : process_space() + " " + std::to_string(::getpid()) + " " +
                                                      std::to_string(file.get()) + " " + to_text(mark));
  } else {
    std::istringstream offer(store->get_to_str("file"));
    std::string space, right_mark;
    pid_t pid = 0;
    int fd = -1;
    if (offer >> space >> pid >> fd >> right_mark && space == process_space()) file = open_file(pid, fd);
    const bool large_enough = file && ::lseek(file.get(), 0, SEEK_END) == static_cast<off_t>(memory->bytes_);
    if (large_enough && (memory->data_ = map(file.get(), memory->bytes_)) != nullptr) {
      std::memcpy(mark.data(), mark_at(), mark.size());
      right = to_text(mark) == right_mark;
    }
  }
  const bool works = wanted && right && memory->data_ != nullptr && open_process(::getpid());
  store->set(key(rank), works ? std::to_string(::getpid()) : kNo);
  bool all_work = true;
  std::vector<pid_t> pids;
  for (int of = 0; of < size; ++of) {
    const auto answer = store->get_to_str(key(of));
    all_work &= answer != kNo;
    if (answer != kNo) pids.push_back(std::stoi(answer));
  }
  if (!all_work) return nullptr;
  for (const auto pid : pids) {
    auto descriptor = open_process(pid);
    const bool gone = !descriptor && errno == ESRCH;
    memory->processes_.push_back({std::move(descriptor), gone});
  }
  return memory;
}

}  // namespace ddprun::ddp

#include <ddprun/group/shared_sum.h>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace ddprun::ddp {
namespace {

using Clock = std::chrono::steady_clock;

// How long a call polls for the other ranks: more than the ranks of a balanced step are apart.
constexpr auto kPatience = std::chrono::microseconds(50);

constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

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

class LocalAllReduce::Call : public c10d::Work {
 public:
  Call(LocalAllReduce& owner, const std::vector<at::Tensor>& tensors, std::uint64_t number,
       std::chrono::milliseconds timeout)
      : Work(owner.rank_, c10d::OpType::ALLREDUCE),
        number(number),
        deadline(Clock::now() + std::min(timeout, kForever)),
        owner_(owner),
        tensors_(tensors),
        contiguous_(tensors_[0].is_contiguous() ? tensors_[0] : tensors_[0].detach().contiguous()),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  const at::Tensor& tensor() const { return contiguous_; }  ///< receives the sum
  std::vector<at::Tensor> result() override { return tensors_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  /// Runs callbacks, which may start more calls.
  void tell() {
    if (!error && !contiguous_.is_same(tensors_[0])) try {
        tensors_[0].detach().copy_(contiguous_);
      } catch (...) {
        error = std::current_exception();
      }
    if (error)
      future_->setError(error);
    else
      future_->markCompleted(c10::IValue(tensors_));
    finish(error);
  }

  const std::uint64_t number;
  const Clock::time_point deadline;
  std::exception_ptr error;

  bool wait(std::chrono::milliseconds timeout) override {
    if (!isCompleted() && owner_.teller_ == std::this_thread::get_id()) owner_.wait_in_callback(*this);
    return Work::wait(timeout);
  }

 private:
  LocalAllReduce& owner_;  // only while this is unfinished
  std::vector<at::Tensor> tensors_;
  at::Tensor contiguous_;  // the tensor, or a contiguous copy
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

LocalAllReduce::LocalAllReduce(std::unique_ptr<SharedMemory> memory, int rank, int size,
                               std::chrono::milliseconds timeout)
    : sum_(std::move(memory), rank, size),
      rank_(rank),
      process_(::getpid()),
      timeout_(timeout),
      thread_([this] { finish_calls(); }) {}

LocalAllReduce::~LocalAllReduce() {
  if (::getpid() != process_) {
    thread_.detach();  // it belongs to the parent
    return;
  }
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  sum_.leave();
  changed_.notify_all();
  thread_.join();
}

bool LocalAllReduce::suits(const std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() != 1 || options.reduceOp != c10d::ReduceOp::SUM) return false;
  const auto& tensor = tensors[0];
  const bool full_precision = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
  return full_precision && tensor.device().is_cpu() && tensor.layout() == at::kStrided;
}

c10::intrusive_ptr<c10d::Work> LocalAllReduce::run(const std::vector<at::Tensor>& tensors,
                                                   const c10d::AllreduceOptions& options,
                                                   std::uint64_t number) {
  const auto timeout = options.timeout.count() > 0 ? options.timeout : timeout_;
  const auto call = c10::make_intrusive<Call>(*this, tensors, number, timeout);
  Lock lock(mutex_);
  calls_.push_back(call);
  const auto until = Clock::now() + kPatience;
  do advance();
  while (!calls_.empty() && Clock::now() < until && ::sched_yield() == 0);
  if (!calls_.empty()) changed_.notify_all();
  tell(lock);
  return call;
}

void LocalAllReduce::drain() {
  TORCH_CHECK(teller_ != std::this_thread::get_id(), "barrier: not possible in a callback of an all_reduce");
  Lock lock(mutex_);
  idle_.wait(lock, [this] { return calls_.empty() && finished_.empty() && teller_ == std::thread::id(); });
}

void LocalAllReduce::finish_calls() {
  for (Lock lock(mutex_);;) {
    changed_.wait(lock, [this] { return !calls_.empty() || ending_; });
    if (calls_.empty()) return;
    const auto posts = sum_.posts();
    const auto first = calls_.front();
    advance();
    if (!calls_.empty() && calls_.front() == first) fail_if_hopeless();
    tell(lock);
    if (calls_.empty() || calls_.front() != first) continue;
    lock.unlock();
    sum_.sleep(posts);
    lock.lock();
  }
}

/// Advances calls_ as far as possible now.
void LocalAllReduce::advance() {
  while (!calls_.empty() && !sum_.has_left()) {
    try {
      if (!std::exchange(has_begun_, true)) sum_.begin(calls_.front()->tensor(), calls_.front()->number);
      if (!sum_.advance()) return;
      end_first({});
    } catch (...) {
      end_first(std::current_exception());
    }
  }
}

/// Fails the first call if it can no longer succeed; then all the others fail too.
void LocalAllReduce::fail_if_hopeless() {
  auto why = sum_.problem();
  if (why.empty() && Clock::now() > calls_.front()->deadline)
    why = sum_.awaited_rank() + " did not arrive in time";
  if (why.empty()) return;
  if (problem_.empty()) problem_ = why;
  sum_.leave();
  end_first(std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, "all_reduce: " + problem_)));
}

void LocalAllReduce::end_first(std::exception_ptr error) {
  calls_.front()->error = std::move(error);
  finished_.push_back(std::move(calls_.front()));
  calls_.pop_front();
  has_begun_ = false;
}

/// In call order, one thread at a time.
void LocalAllReduce::tell(Lock& lock) {
  if (teller_ != std::thread::id()) return;
  teller_ = std::this_thread::get_id();
  tell_finished(lock);
  teller_ = std::thread::id();
  if (calls_.empty()) idle_.notify_all();
}

/// Without the lock, because callbacks may start more calls.
void LocalAllReduce::tell_finished(Lock& lock) {
  while (!finished_.empty()) {
    const auto call = std::move(finished_.front());
    finished_.pop_front();
    lock.unlock();
    call->tell();
    lock.lock();
  }
}

/// For the thread in tell(), on which all reports depend.
void LocalAllReduce::wait_in_callback(Call& call) {
  for (Lock lock(mutex_); !call.isCompleted();) {
    const auto posts = sum_.posts();
    advance();
    if (!calls_.empty()) fail_if_hopeless();
    tell_finished(lock);
    if (call.isCompleted()) return;
    lock.unlock();
    sum_.sleep(posts);
    lock.lock();
  }
}

}  // namespace ddprun::ddp

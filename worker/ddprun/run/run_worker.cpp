#include <ddprun/run/run_worker.h>

#include <c10/util/Exception.h>
#include <malloc.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include <ddprun/common/error_file.h>
#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/recovery.h>
#include <ddprun/common/text.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/signal_thread.h>

namespace ddprun {
namespace {

/// Makes the C library keep freed tensors' memory for the next step: returning it costs a page fault for
/// every 4 KiB when it is needed again. And makes LibTorch ask for huge pages, which a process's first step
/// maps faster.
void keep_freed_memory() {
  const auto huge_pages = read_or_empty("/sys/kernel/mm/transparent_hugepage/enabled");
  if (!huge_pages.empty() && huge_pages.find("[never]") == std::string::npos)
    ::setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // glibc's maximum; larger tensors are still mapped
  ::mallopt(M_TRIM_THRESHOLD, 2000 << 20);
  ::mallopt(M_TOP_PAD, 64 << 20);
}

/// Freed when the process fails, perhaps out of memory, so that it can report this.
std::unique_ptr<char[]> spare_memory;

std::function<void()>& last_act() {
  static std::function<void()> function;
  return function;
}

/// Logs the failure, writes the launcher's error file and ends the process at once, without teardown.
[[noreturn]] void end_in_failure(const Failure& failure) {
  bool reported = false;  // by the launcher
  try {
    const auto path = process_env("TORCHELASTIC_ERROR_FILE").value_or("");
    reported = !path.empty() && write_error_file(path, {failure.message, "", std::time(nullptr)});
  } catch (const std::exception& error) {
    log_warning(std::string("cannot write the error file: ") + error.what());
  }
  if (!(reported && failure.on_every_rank && process_env("LOCAL_RANK").value_or("0") != "0"))
    log_error(failure.message);
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(failure.exit_code);
}

}  // namespace

Failure describe_failure(std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const UsageError& error) {
    return {error.what(), 2, /*on_every_rank=*/true};
  } catch (const IoError& error) {
    return {one_line(error.what()), 1, /*on_every_rank=*/true};
  } catch (const SameOnEveryRank& error) {
    return {one_line(error.what()), 1, /*on_every_rank=*/true};
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();  // perhaps with lines of context from its caller
    return {one_line(text.substr(0, text.find('\n'))), 1};
  } catch (const std::bad_alloc& error) {
    return {std::string("memory ran out: ") + error.what(), 1};
  } catch (const std::system_error& error) {  // std::thread's
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    return {one_line((no_thread ? "out of memory or threads (ulimit -v, -u): cannot start a thread: " : "") +
                     std::string(error.what())),
            1};
  } catch (const std::exception& error) {
    return {one_line(error.what()), 1};
  } catch (...) {
    return {"unknown error", 1};
  }
}

void prepare_worker(const std::string& name) {
  ::signal(SIGPIPE, SIG_IGN);  // a closed stdout (| head) must not end the training
  ::signal(SIGXFSZ, SIG_IGN);  // nor must a file at its `ulimit -f` limit: writing to it fails
  keep_freed_memory();
  configure_logging(name);
  spare_memory = std::make_unique<char[]>(1 << 20);
  // Not a catch block, which would unwind the stack: this rank's connections must stay open until the
  // launcher has seen it fail, or other ranks would fail first.
  std::set_terminate([] {
    if (!std::current_exception()) std::abort();
    spare_memory.reset();
    const auto failure = describe_failure(ddp::explained_failure(std::current_exception()));
    ddp::announce_failure(failure.message);
    if (last_act()) last_act()();
    end_in_failure(failure);
  });
}

void before_failure(std::function<void()> function) { last_act() = std::move(function); }

int run_worker(const std::function<void(const WorkerEnv&)>& train) {
  prepare_worker(::program_invocation_short_name);
  stand_by();
  const ddp::SignalThread dump_on_request(SIGUSR2, [] { ddp::dump_flight("SIGUSR2"); });
  train(from_env());
  return EXIT_SUCCESS;
}

}  // namespace ddprun

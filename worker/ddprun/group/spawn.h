#pragma once

#include <chrono>
#include <functional>

#include <ddprun/common/worker_env.h>

namespace ddprun {

struct SpawnOptions {
  /// At the first failure the other ranks get SIGTERM, then SIGKILL if they are still alive after this time.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  /// False: every rank runs to its end, and the error names all that failed.
  bool end_others = true;
};

/// Runs body once per rank, each in its own process, without a launcher, like Python's mp.spawn.
///
///   ddprun::spawn(4, [](const WorkerEnv& env) {
///     auto group = ddp::ProcessGroup::connect(env, {});
///     ...
///     group.close();
///   });
///
/// The ranks are forked, so call it before this process starts threads: before LibTorch computes with several
/// threads or runs a backward, and before a process group connects here. A rank inherits everything from the
/// caller, and gets env's variables (RANK, MASTER_ADDR, ...); it ignores SIGPIPE and dies with this process.
/// Unless OMP_NUM_THREADS is set, it computes with its share of the CPUs, as under ddprun. At its end it
/// flushes stdout and stderr, as this process does before the fork, but runs no static destructors or atexit
/// handlers.
///
/// returns  when all ranks have returned from body
/// throws   std::invalid_argument if n < 1; std::logic_error if this process has several threads;
///          std::system_error if a process cannot be started; std::runtime_error "rank 1: MESSAGE" for what
///          the first rank to fail threw, or "rank 1: signal 9 (SIGKILL)", "rank 1: exit code 3"; the others
///          have ended by then
void spawn(int n, const std::function<void(const WorkerEnv&)>& body, const SpawnOptions& options = {});

}  // namespace ddprun

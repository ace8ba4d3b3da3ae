#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>

#include "launcher/output/attempt_output.h"
#include "tests/launcher/output/output_rig.h"
#include "tests/support/catch.h"

namespace ddprun::test {
using namespace launcher;

inline StreamPlan to_console(const std::string& prefix = "") {
  StreamPlan plan;
  plan.prefix = prefix;
  return plan;
}

inline StreamPlan to_file(const std::string& file) {
  StreamPlan plan;
  plan.console = false;
  plan.file = file;
  return plan;
}

inline StreamPlan to_nowhere() { return to_file(""); }

/// The console of a ddprun, its log folder and its workers.
struct OutputRig {
  explicit OutputRig(Ends out_ends = make_pipe(), Ends err_ends = make_pipe())
      : out(std::move(out_ends)),
        err(std::move(err_ends)),
        console(std::in_place, io, out.theirs.get(), err.theirs.get()),
        logs(std::in_place, io, *console, std::make_shared<LogFolder>(temp.path())) {}

  WorkerOutputs open(std::size_t index, const WorkerOutputPlan& plan) {
    REQUIRE(run(io, made(plan)) == true);
    return logs->open(index, plan);
  }
  void start(std::size_t index, const WorkerOutputPlan& plan, const std::function<void()>& work) {
    writers.emplace_back(open(index, plan), work);
  }
  void drain(std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::now() + kDeadline) {
    REQUIRE(run(io, logs->wait_for_ends(deadline)).has_value());
    logs->finish();
    REQUIRE(run(io, logs->drain_files(deadline)) == true);
    REQUIRE(run(io, console->drain(deadline)).has_value());
  }
  /// Closes all that can still write to the console: its readers come to an end.
  void close_console() {
    logs.reset();
    console.reset();
    out.theirs.reset();
    err.theirs.reset();
  }
  std::string file(const std::string& name) const { return read_file(temp.path() / name); }

  boost::asio::awaitable<bool> made(WorkerOutputPlan plan) {
    const std::vector<WorkerOutputPlan> plans = {plan};
    const std::function<bool()> waits = [] { return false; };
    co_await logs->make_files(plans, waits);
    co_return true;
  }

  TempDir temp;
  boost::asio::io_context io;
  Ends out, err;
  std::optional<Console> console;
  std::optional<AttemptOutput> logs;
  std::list<Writer> writers;
};

}  // namespace ddprun::test

#include "launcher/output/job_output.h"

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

OutputPlace pipes() {
  return {false, false, false, "default", "[${role_name}${local_rank}]:", "/logs/attempt_0"};
}
OutputPlace terminals() {
  return {true, true, false, "default", "[${role_name}${local_rank}]:", "/logs/attempt_0"};
}

StreamSelection streams(const std::string& text) { return parse_stream_selection(text).value(); }

std::vector<WorkerOutputPlan> plan(const OutputOptions& options, int workers,
                                   const OutputPlace& place = pipes()) {
  return plan_outputs(options, place, 0, workers);
}

TEST_CASE("a single worker of which nothing is asked keeps ddprun's streams", "[job_output]") {
  CHECK(plan({}, 1)[0].out.inherit);
  CHECK(plan({}, 1, terminals())[0].err.inherit);
  CHECK_FALSE(plan({}, 2)[0].out.inherit);
  OutputOptions timestamps;
  timestamps.timestamps = true;
  CHECK_FALSE(plan(timestamps, 1)[0].out.inherit);
  OutputPlace watched = pipes();
  watched.need_activity = true;
  CHECK_FALSE(plan({}, 1, watched)[0].out.inherit);
}

TEST_CASE("several workers' lines have a prefix on a terminal, with --tee, or as the user says",
          "[job_output]") {
  CHECK(plan({}, 2)[1].out.prefix.empty());
  CHECK(plan({}, 2, terminals())[1].out.prefix == "[default1]:");
  OutputOptions tee;
  tee.tee = streams("1:1");
  CHECK(plan(tee, 2)[1].out.prefix == "[default1]:");
  CHECK(plan(tee, 2)[1].err.prefix.empty());
  CHECK(plan(tee, 2)[0].out.prefix.empty());
  OutputOptions never;
  never.prefix = false;
  CHECK(plan(never, 2, terminals())[0].out.prefix.empty());
  OutputOptions always;
  always.prefix = true;
  CHECK(plan(always, 1)[0].out.prefix == "[default0]:");
}

TEST_CASE("redirected streams go to files instead, teed ones as well", "[job_output]") {
  OutputOptions options;
  options.log_dir = "/logs";
  options.redirects = streams("0:3,11:1");
  options.tee = streams("0:1");
  const auto plans = plan(options, 12);
  CHECK(plans[0].out.file == "/logs/attempt_0/0/stdout.log");
  CHECK(plans[0].out.console);  // tee wins, as in torchrun
  CHECK(plans[0].err.file == "/logs/attempt_0/0/stderr.log");
  CHECK_FALSE(plans[0].err.console);
  CHECK(plans[11].out.file == "/logs/attempt_0/11/stdout.log");
  CHECK_FALSE(plans[11].out.console);
  CHECK(plans[1].out.file.empty());
  CHECK(plans[1].out.console);
}

TEST_CASE("files are made where they are asked for, or for streams that only go to files", "[job_output]") {
  const auto output = [](std::vector<std::string> flags) {
    flags.push_back("program");
    return parse_options(flags, [](const std::string&) { return std::nullopt; }).output;
  };
  CHECK(output({}).log_dir.empty());
  CHECK(output({"--tee=3"}).log_dir.empty());
  CHECK(plan(output({"--tee=3"}), 1)[0].out.file.empty());
  CHECK(output({"--redirects=3"}).log_dir == "ddprun_logs");
  CHECK(output({"--redirects=3"}).log_dir_source == "the log folder");
  CHECK(output({"--log-dir=x"}).log_dir_source == "--log-dir");
  CHECK(output({"--redirects=3", "--log-dir=/dev/null"}).log_dir.empty());  // torchrun's way to want none
  CHECK_THROWS_AS(output({"--tee=4"}), UsageError);
}

TEST_CASE("the filter of ranks hides the others, and files stay", "[job_output]") {
  OutputOptions options;
  options.shown = {{1}};
  options.log_dir = "/logs";
  options.tee = streams("3");
  const auto plans = plan(options, 2);
  CHECK_FALSE(plans[0].out.console);
  CHECK(plans[0].out.file == "/logs/attempt_0/0/stdout.log");
  CHECK(plans[1].out.console);
}

TEST_CASE("filtered lines go to one file of all workers", "[job_output]") {
  OutputOptions options;
  options.log_dir = "/logs";
  options.stderr_filters = {"loss", "step"};
  const auto plans = plan(options, 2);
  CHECK(plans[0].out.filtered_file.empty());
  CHECK(plans[0].err.filtered_file == "/logs/attempt_0/filtered_stderr.log");
  CHECK(plans[1].err.filtered_file == plans[0].err.filtered_file);
  CHECK(plans[1].err.filtered_prefix == "[default1]:");
  CHECK(plans[0].err.filters == std::vector<std::string>{"loss", "step"});
}

TEST_CASE("a run id cannot lead out of its folder", "[job_output]") {
  CHECK(folder_name("my-run_1.2") == "my-run_1.2");
  CHECK(folder_name("../../etc") == ".._.._etc");
  CHECK(folder_name("..") == ".._");
  CHECK(folder_name("") == "_");
  CHECK(folder_name("a b\n/\xff") == "a_b___");
  CHECK(folder_name(std::string(200, 'x')).size() == 64);
}

}  // namespace
}  // namespace ddprun::launcher

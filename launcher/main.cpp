#include <unistd.h>

#include <exception>

#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/settings/command.h>
#include "launcher/cli/options.h"
#include "launcher/events/launch_error.h"
#include "launcher/events/signals.h"
#include "launcher/host/processes.h"
#include "launcher/host/task_launcher.h"
#include "launcher/job/supervisor.h"

using namespace ddprun;
using namespace ddprun::launcher;

int main(int argc, char** argv) {
  forget_other_job();
  configure_logging("ddprun");
  try {
    leave_init_process();
    const Options options =
        parse_options({argv + (argc > 0 ? 1 : 0), argv + argc}, task_environment(process_env));
    if (options.help) settings::print_help(help_text());
    if (options.version) write_stdout("ddprun " DDPRUN_VERSION "\n");
    write_stdout(options.completion);
    if (options.help || options.version || !options.completion.empty()) return 0;

    std::vector<std::string> environment;
    for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
    const RunResult result = run_job(options, environment);
    if (result.ended_by) end_by_signal(*result.ended_by);
    return result.exit_code;
  } catch (const std::exception& error) {
    log_error(error.what());
    return exit_code_of(error);
  }
}

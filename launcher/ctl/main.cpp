#include <unistd.h>

#include <cstdio>
#include <exception>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/settings/command.h>
#include "launcher/ctl/commands.h"
#include "launcher/events/launch_error.h"

using namespace ddprun;
using namespace ddprun::launcher;

int main(int argc, char** argv) {
  configure_logging("ddpctl");
  try {
    const CtlOptions options = parse_ctl_options({argv + (argc > 0 ? 1 : 0), argv + argc});
    if (options.help) settings::print_help(ctl_help());
    if (options.version) std::puts("ddpctl " DDPRUN_VERSION);
    if (options.help || options.version) return std::fflush(stdout) == 0 ? 0 : 1;
    if (options.command == "top" && !options.once && ::isatty(STDOUT_FILENO) == 1 &&
        ::isatty(STDIN_FILENO) == 1)
      return show_top(options.job, options.interval);
    return run_command(options);
  } catch (const UsageError& error) {
    log_error(error.what());
    return 2;
  } catch (const std::exception& error) {
    log_error(error.what());
    return 1;
  }
}

#include <malloc.h>
#include <unistd.h>

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/settings/command.h>
#include "launcher/cli/options.h"
#include "launcher/events/launch_error.h"
#include "launcher/events/signals.h"
#include "launcher/host/processes.h"
#include "launcher/host/task_launcher.h"
#include "launcher/job/preflight.h"
#include "launcher/job/supervisor.h"
#include "launcher/remote/start_order.h"

using namespace ddprun;
using namespace ddprun::launcher;

int main(int argc, char** argv) {
  ::mallopt(M_ARENA_MAX, 1);  // its few threads share the memory: an arena for each takes longer to make
  forget_other_job();
  configure_logging("ddprun");
  try {
    leave_init_process();
    std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
    if (!words.empty() && words[0] == kOnlyChecks) return run_checks(words);
    std::optional<StartOrder> order;
    if (words == std::vector<std::string>{kStartedOverSsh}) {
      order = receive_order();
      words = order->words;
      configure_logging("ddprun on " + order->hosts[order->own].name());
      if (order->own != 0) log_only_problems();
    }
    const Options options = parse_options(words, task_environment(process_env), order ? &*order : nullptr);
    if (order) write_all(STDERR_FILENO, kStartedLine);
    if (options.excluded) log_info("this node takes no part in the job (--exclude)");
    if (options.help) settings::print_help(help_text());
    if (options.version) write_stdout("ddprun " DDPRUN_VERSION "\n");
    write_stdout(options.completion);
    if (options.help || options.version || !options.completion.empty() || options.excluded) return 0;

    std::vector<std::string> environment;
    for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
    const RunResult result = run_job(options, environment);
    // ssh could not tell a signal from the end of the connection.
    if (result.ended_by && !order) end_by_signal(*result.ended_by);
    return result.exit_code;
  } catch (const std::exception& error) {
    log_error(error.what());
    return exit_code_of(error);
  }
}

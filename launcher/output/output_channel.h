#pragma once

#include <ddprun/common/files.h>

namespace ddprun::launcher {

/// A way for bytes from a worker to ddprun. Both ends are closed on exec, and only ours never waits.
struct OutputChannel {
  UniqueFd reading;
  UniqueFd writing;
};

/// throws std::system_error
OutputChannel open_output_pipe();

/// A pseudo-terminal that changes no byte, of the size of the terminal `like`: for programs that show colours
/// and progress bars only on a terminal. A pipe where the system gives no terminal. throws std::system_error
OutputChannel open_output_terminal(int like);

/// Gives one terminal the size of another. No terminal: nothing happens.
void copy_window_size(int from, int to);

}  // namespace ddprun::launcher

#define NCURSES_NOMACROS  // which would claim names such as timeout
#include <curses.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <clocale>
#include <cstdio>
#include <exception>
#include <future>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include "launcher/ctl/commands.h"
#include "launcher/ctl/job_screen.h"
#include "launcher/events/launch_error.h"

namespace ddprun::launcher {
namespace {

using json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kEscape = 27;
constexpr std::chrono::milliseconds kLookForStacks{100};
enum Colour : short { kPlain = 0, kYellow, kRed, kCyan };

const std::vector<std::string> kKeys{
    "up, down, page up, page down   choose a rank",
    "enter, l                       the last lines that the rank wrote",
    "k                              the rank's current stacks, without stopping it",
    "r s t d o c m                  sort by rank, step, own time, data,",
    "                               communication, CPU, memory",
    "tab                            the next job",
    "h / escape / q                 this help / back to the table / leave",
    "",
    "STEP TIME   time of a step, over the last ten seconds: the same for all",
    "            ranks that wait for each other",
    "OWN TIME    the same without waiting for others: shows which rank is slow",
    "DATA, COMM  the shares of a step spent waiting for input and for other ranks",
};

/// The terminal, as long as this lives.
class Terminal {
 public:
  Terminal() {
    std::setlocale(LC_ALL, "");
    screen_ = ::newterm(nullptr, stdout, stdin);
    if (screen_ == nullptr) throw UsageError("TERM: unknown terminal; ddpctl top --once needs none");
    ::cbreak();
    ::noecho();
    ::keypad(stdscr, TRUE);
    ::curs_set(0);
    ::set_escdelay(25);
    if (::has_colors()) {
      ::start_color();
      ::use_default_colors();
      ::init_pair(kYellow, COLOR_YELLOW, -1);
      ::init_pair(kRed, COLOR_RED, -1);
      ::init_pair(kCyan, COLOR_CYAN, -1);
    }
  }
  ~Terminal() {
    ::endwin();
    ::delscreen(screen_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

 private:
  SCREEN* screen_;
};

class Top {
 public:
  Top(JobConnection job, double interval)
      : job_(std::move(job)),
        interval_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(interval))) {
    state_.view = job_.view();
    state_.gpus = gpu_use();
  }

  /// Runs until the user leaves. throws IoError when the job ends
  void run() {
    auto next_look = Clock::now() + interval_;
    for (;;) {
      draw();
      const auto wake = stacks_.valid() ? std::min(next_look, Clock::now() + kLookForStacks) : next_look;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(wake - Clock::now()).count();
      ::timeout(static_cast<int>(std::max<long>(left, 0)));
      if (const int key = ::getch(); key != ERR && !handle(key)) return;
      take_stacks();
      if (Clock::now() < next_look) continue;
      look();
      next_look = Clock::now() + interval_;
    }
  }

 private:
  enum class Page { kTable, kLines, kStacks, kKeys };

  void look() {
    state_.before = std::exchange(state_.view, job_.ask({{"ask", "status"}}));
    if (!state_.gpus.empty()) state_.gpus = gpu_use();
    if (page_ == Page::kLines) show_lines();
  }

  bool handle(int key) {
    note_.clear();
    const auto place = std::find_if(screen_.rows.begin(), screen_.rows.end(),
                                    [&](const ScreenRow& row) { return row.rank == selected_; });
    const auto move = [&](std::ptrdiff_t by) {
      if (page_ == Page::kStacks || page_ == Page::kKeys)
        return void(scroll_ = std::max<std::ptrdiff_t>(scroll_ + by, 0));
      if (screen_.rows.empty()) return;
      const auto to =
          std::clamp<std::ptrdiff_t>(place - screen_.rows.begin() + by, 0, std::ssize(screen_.rows) - 1);
      selected_ = screen_.rows[static_cast<std::size_t>(to)].rank;
      if (page_ == Page::kLines) show_lines();
    };
    switch (key) {
      case 'q':
        return false;
      case kEscape:
        page_ = Page::kTable;
        break;
      case KEY_UP:
        move(-1);
        break;
      case KEY_DOWN:
        move(1);
        break;
      case KEY_PPAGE:
        move(-(LINES / 2));
        break;
      case KEY_NPAGE:
        move(LINES / 2);
        break;
      case '\n':
      case KEY_ENTER:
      case 'l':
        show_lines();
        break;
      case 'k':
        show_stacks();
        break;
      case 'h':
      case '?':
        page_ = Page::kKeys, text_ = kKeys, scroll_ = 0;
        break;
      case '\t':
        next_job();
        break;
      default:
        if (key > 0 && key < 128 &&
            std::string_view("rstdocm").find(static_cast<char>(key)) != std::string_view::npos)
          sort_by_ = static_cast<SortBy>(key);
    }
    return true;
  }

  void show_lines() {
    page_ = Page::kLines;
    text_ = {elsewhere(state_.view, selected_)};
    if (!text_[0].empty()) return;
    try {
      const json reply = job_.ask({{"ask", "output"}, {"rank", selected_}, {"seen", 0}});
      text_ = printable_lines(reply["text"].get<std::string>());
      if (text_.empty()) text_ = {"no output yet, or the rank writes to the terminal itself"};
    } catch (const IoError& error) {
      text_ = {error.what()};
    }
  }

  void show_stacks() {
    if (stacks_.valid()) return void(note_ = "still waiting for the stacks of another rank");
    page_ = Page::kStacks, scroll_ = 0;
    text_ = {elsewhere(state_.view, selected_)};
    if (!text_[0].empty()) return;
    text_ = {"looking at rank " + std::to_string(selected_) + " ..."};
    const auto ask = [socket = job_.socket(), rank = selected_]() -> std::vector<std::string> {
      try {
        JobConnection job(socket);
        return printable_lines(stacks_text(job, rank));
      } catch (const IoError& error) {
        return {error.what()};
      }
    };
    std::packaged_task<std::vector<std::string>()> task(ask);
    stacks_ = task.get_future();
    std::thread(std::move(task)).detach();  // debuggers take their time, and the keys go on
  }

  void take_stacks() {
    if (!stacks_.valid() || stacks_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    auto text = stacks_.get();
    if (page_ == Page::kStacks) text_ = std::move(text);
  }

  void next_job() {
    std::vector<JobConnection> jobs = find_jobs();
    for (std::size_t i = 0; i < jobs.size(); ++i)
      if (jobs[i].view()["job"] == state_.view["job"]) {
        job_ = std::move(jobs[(i + 1) % jobs.size()]);
        state_ = {job_.view(), nullptr, gpu_use()};
        page_ = Page::kTable, selected_ = 0, first_row_ = 0;
        if (jobs.size() == 1) note_ = "this is the only job";
        return;
      }
  }

  void put(int row, const std::string& text, attr_t attributes = A_NORMAL, short colour = kPlain) const {
    ::attr_set(attributes, colour, nullptr);
    ::mvaddnstr(row, 0, text.c_str(), std::min<int>(static_cast<int>(text.size()), COLS * 4));
    ::attr_set(A_NORMAL, kPlain, nullptr);
  }

  void draw() {
    ::erase();
    screen_ = job_screen(state_, sort_by_, static_cast<std::size_t>(COLS));
    int row = 0;
    for (const std::string& line : screen_.head) {
      put(row, line, row == 0 ? A_BOLD : A_NORMAL, row == 0 ? kCyan : kPlain);
      ++row;
    }
    ++row;
    if (page_ == Page::kTable)
      draw_table(row);
    else
      draw_text(row);
    const std::string sorted =
        sort_by_ == SortBy::kRank ? "" : "  sorted by " + std::string(1, static_cast<char>(sort_by_));
    put(LINES - 1, note_.empty() ? "q leave  h keys  l lines  k stacks  r s t d o c m sort" + sorted : note_,
        A_DIM);
    ::refresh();
  }

  void draw_table(int row) {
    put(row, std::string(static_cast<std::size_t>(COLS), ' '), A_REVERSE);
    put(row++, screen_.columns, A_REVERSE);
    const auto room = static_cast<std::size_t>(std::max(LINES - 1 - row, 1));
    std::size_t selected = 0;
    for (std::size_t i = 0; i < screen_.rows.size(); ++i)
      if (screen_.rows[i].rank == selected_) selected = i;
    if (screen_.rows.size() > selected) selected_ = screen_.rows[selected].rank;
    first_row_ = std::clamp(first_row_, selected + 1 > room ? selected + 1 - room : 0, selected);
    for (std::size_t i = first_row_; i < std::min(first_row_ + room, screen_.rows.size()); ++i) {
      const ScreenRow& line = screen_.rows[i];
      attr_t attributes = line.kind == ScreenRow::Kind::kEnded ? A_DIM : A_NORMAL;
      if (line.kind == ScreenRow::Kind::kSlow) attributes |= A_BOLD;
      const short colour = line.kind == ScreenRow::Kind::kSlow      ? kRed
                           : line.kind == ScreenRow::Kind::kSlowest ? kYellow
                                                                    : kPlain;
      put(row, line.text, attributes, colour);
      if (i == selected) put(row, ">", A_BOLD);
      ++row;
    }
  }

  void draw_text(int row) {
    const std::string of = "rank " + std::to_string(selected_) + ": ";
    put(row++, page_ == Page::kKeys ? "keys" : of + (page_ == Page::kLines ? "its last lines" : "its stacks"),
        A_BOLD);
    const std::ptrdiff_t room = std::max(LINES - 1 - row, 1),
                         most = std::max<std::ptrdiff_t>(std::ssize(text_) - room, 0);
    scroll_ = page_ == Page::kLines ? most : std::min(scroll_, most);
    for (std::ptrdiff_t i = scroll_; i < std::min(scroll_ + room, std::ssize(text_)); ++i)
      put(row++, shortened(text_[static_cast<std::size_t>(i)], static_cast<std::size_t>(COLS)));
  }

  JobConnection job_;
  Clock::duration interval_;
  ScreenState state_;
  JobScreen screen_;
  SortBy sort_by_ = SortBy::kRank;
  Page page_ = Page::kTable;
  std::vector<std::string> text_;
  std::future<std::vector<std::string>> stacks_;  // asked for
  std::string note_;
  int selected_ = 0;
  std::size_t first_row_ = 0;
  std::ptrdiff_t scroll_ = 0;
};

}  // namespace

int show_top(const std::string& wanted, double interval) {
  std::vector<JobConnection> jobs = find_jobs();
  JobConnection job = wanted.empty() && !jobs.empty() ? std::move(jobs.back()) : find_job(wanted);
  const std::string name = job.view()["job"].get<std::string>();
  try {
    const Terminal terminal;
    Top(std::move(job), interval).run();
  } catch (const IoError& error) {
    if (error.error_number == ETIMEDOUT) throw;  // for instance because ddprun is stopped
    std::printf("job %s has ended\n", name.c_str());
  }
  return 0;
}

}  // namespace ddprun::launcher

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

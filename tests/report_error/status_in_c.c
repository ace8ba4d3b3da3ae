// A user's program in C that says its status: "all", "nothing", or "extremes".
#include <ddprun/report_status.h>
#include <float.h>
#include <limits.h>
#include <locale.h>
#include <string.h>

int main(int argc, char** argv) {
  struct ddprun_status status = DDPRUN_STATUS_UNKNOWN;
  if (argc != 2) return 2;
  setlocale(LC_ALL, "");
  if (strcmp(argv[1], "all") == 0) {
    const struct ddprun_status all = {1200,  9380, 3, 5,   153600, "train \"1\"\n", 0.125, 1.5,
                                      30.25, 4,    2, 0.5, 2.5,    123456789,       0};
    status = all;
  } else if (strcmp(argv[1], "extremes") == 0) {
    static char phase[5000];
    memset(phase, 'x', sizeof phase - 1);
    status.phase = phase;
    status.step = LLONG_MAX / 1024 * 1024;
    status.loss = -INFINITY;
    status.seconds_data = DBL_MAX;
  }
  return ddprun_report_status(&status) ? 0 : 3;
}

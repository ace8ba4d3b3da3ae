// Tells ddprun how this rank's training goes, for ddpctl, --metrics-port and the search for slow ranks. C99
// or C++, a single header, only the standard library and POSIX.
//
//   #include <ddprun/report_status.h>
//
//   struct ddprun_status status = DDPRUN_STATUS_UNKNOWN;
//   status.steps = 10000;
//   for (status.step = 0; status.step < status.steps;) {
//     ...                                      // add what the step took to status.seconds_compute and others
//     ++status.step;
//     ddprun_report_status(&status);           // every step, or every few
//   }
#ifndef DDPRUN_REPORT_STATUS_H
#define DDPRUN_REPORT_STATUS_H

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

// Negative counts, non-finite numbers and a NULL phase mean unknown. A loss that becomes non-finite after
// finite ones is shown as such.
struct ddprun_status {
  long long step, steps;    // done since step 0, and the total
  long long epoch, epochs;  // done, and the total
  long long samples;        // of this rank since the process started
  const char* phase;        // such as "train"
  double loss;
  // Since the process started. Compute is this rank's own work; communication is waiting for other ranks.
  double seconds_data, seconds_compute, seconds_communication, seconds_evaluation, seconds_checkpoint,
      seconds_start;
  long long memory_resident, memory_device;  // bytes
};

#define DDPRUN_STATUS_UNKNOWN \
  { -1, -1, -1, -1, -1, NULL, NAN, NAN, NAN, NAN, NAN, NAN, NAN, -1, -1 }

// The pipe that DDPRUN_STATUS_FD names; -1: none.
static inline int ddprun_status_pipe(void) {
  static int fd = -2;  // not looked up yet
  struct stat info;
  char* end;
  if (fd == -2) {
    const char* text = getenv("DDPRUN_STATUS_FD");
    const long number = text != NULL && *text != '\0' ? strtol(text, &end, 10) : -1;
    fd = -1;
    if (number >= 0 && number < 1 << 20 && *end == '\0' && fstat((int)number, &info) == 0 &&
        S_ISFIFO(info.st_mode) &&
        (fcntl((int)number, F_GETFL) & (O_ACCMODE | O_NONBLOCK)) ==
            (O_WRONLY | O_NONBLOCK)) {  // as ddprun's is
      fd = (int)number;
      fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
  }
  return fd;
}

// Appends "NAME":NUMBER unless the number is unknown.
static inline void ddprun_status_add(char* line, size_t size, size_t* used, const char* name, double value,
                                     int is_count) {
  char* begin = line + *used;
  int n;
  if (!isfinite(value) || (is_count && value < 0)) return;
  n = snprintf(begin, size - *used, is_count ? "%s\"%s\":%.0f" : "%s\"%s\":%.17g",
               begin[-1] == '{' ? "" : ",", name, value);
  for (int i = 1; i < n; ++i)
    if (begin[i] == ',') begin[i] = '.';  // some locales' decimal point
  *used += (size_t)n;
}

static inline void ddprun_status_text(char* line, size_t* used, const char* text, size_t most) {
  while (*text != '\0' && most-- > 0) {
    const unsigned char c = (unsigned char)*text++;
    line[(*used)++] = (char)(c < 0x20 || c > 0x7e || c == '"' || c == '\\' ? '?' : c);
  }
}

// Sends the status to ddprun. Never waits: drops the status if ddprun is gone or its pipe is full. returns 1
// if it was sent, else 0.
static inline int ddprun_report_status(const struct ddprun_status* status) {
  char line[2048] = "{";
  size_t used = 1, open;
  const int fd = ddprun_status_pipe();
  if (fd < 0) return 0;
#define DDPRUN_ADD(name, value, is_count) \
  ddprun_status_add(line, sizeof line, &used, name, (double)(value), is_count)
  if (status->phase != NULL) {
    used += (size_t)snprintf(line + used, sizeof line - used, "\"phase\":\"");
    ddprun_status_text(line, &used, status->phase, 64);
    line[used++] = '"';
  }
  DDPRUN_ADD("step", status->step, 1);
  DDPRUN_ADD("steps", status->steps, 1);
  DDPRUN_ADD("epoch", status->epoch, 1);
  DDPRUN_ADD("epochs", status->epochs, 1);
  DDPRUN_ADD("samples", status->samples, 1);
  DDPRUN_ADD("loss", status->loss, 0);
  if (!isfinite(status->loss))
    used += (size_t)snprintf(line + used, sizeof line - used, "%s\"loss\":null", used == 1 ? "" : ",");
  open = used;
  used += (size_t)snprintf(line + used, sizeof line - used, "%s\"seconds\":{", open == 1 ? "" : ",");
  DDPRUN_ADD("data", status->seconds_data, 0);
  DDPRUN_ADD("compute", status->seconds_compute, 0);
  DDPRUN_ADD("communication", status->seconds_communication, 0);
  DDPRUN_ADD("evaluation", status->seconds_evaluation, 0);
  DDPRUN_ADD("checkpoint", status->seconds_checkpoint, 0);
  DDPRUN_ADD("start", status->seconds_start, 0);
  used += (size_t)snprintf(line + used, sizeof line - used, "},\"memory\":{");
  DDPRUN_ADD("resident", status->memory_resident, 1);
  DDPRUN_ADD("device", status->memory_device, 1);
  used += (size_t)snprintf(line + used, sizeof line - used, "}}\n");
#undef DDPRUN_ADD
  return write(fd, line, used) == (ssize_t)used;
}

#endif  // DDPRUN_REPORT_STATUS_H

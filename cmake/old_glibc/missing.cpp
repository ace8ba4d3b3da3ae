// What glibc 2.28 lacks of the functions that our code, libstdc++ or libgcc was compiled to call: part of the
// portable ddprun only. When a link of it fails for a function that newer versions brought, add it here or do
// without it.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <iterator>

// ---- start: before 2.34 the program itself runs its constructors

using Function = void (*)(int, char**, char**);
using Main = int (*)(int, char**, char**);

extern "C" {
void _init();
extern const Function __init_array_start[];
extern const Function __init_array_end[];
int __real___libc_start_main(Main, int, char**, Function, void (*)(), void (*)(), void*);

static void run_constructors(int argc, char** argv, char** environment) {
  _init();
  for (const Function* function = __init_array_start; function != __init_array_end; ++function)
    (*function)(argc, argv, environment);
}

int __wrap___libc_start_main(Main main, int argc, char** argv, Function init, void (*fini)(),
                             void (*rtld_fini)(), void* stack_end) {
  return __real___libc_start_main(main, argc, argv, init != nullptr ? init : run_constructors, fini,
                                  rtld_fini, stack_end);
}

// ---- 2.33: stat and its like were inline functions before

int fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, status, flags));
}
int stat(const char* path, struct stat* status) noexcept { return fstatat(AT_FDCWD, path, status, 0); }
int lstat(const char* path, struct stat* status) noexcept {
  return fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
int fstat(int fd, struct stat* status) noexcept { return static_cast<int>(syscall(SYS_fstat, fd, status)); }

static_assert(sizeof(struct stat) == sizeof(struct stat64));
int fstatat64(int, const char*, struct stat64*, int) noexcept __attribute__((alias("fstatat")));
int stat64(const char*, struct stat64*) noexcept __attribute__((alias("stat")));
int lstat64(const char*, struct stat64*) noexcept __attribute__((alias("lstat")));
int fstat64(int, struct stat64*) noexcept __attribute__((alias("fstat")));

// ---- 2.32

char __libc_single_threaded = 0;  // never: libstdc++ counts references atomically

const char* sigabbrev_np(int signal) noexcept {
  static constexpr const char* kNames[] = {
      nullptr, "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1",
      "SEGV",  "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN",
      "TTOU",  "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "POLL", "PWR",  "SYS"};
  static_assert(std::size(kNames) == SIGSYS + 1);
  return signal > 0 && signal <= SIGSYS ? kNames[signal] : nullptr;
}

// ---- 2.35: libgcc looks here for what it needs to unwind the stack

#if __GLIBC_PREREQ(2, 35)
static int find_object(dl_phdr_info* info, std::size_t, void* data) {
  auto& result = *static_cast<dl_find_object*>(data);
  const auto wanted = reinterpret_cast<std::uintptr_t>(result.dlfo_map_start);
  bool is_here = false;
  void* frames = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    const auto begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && wanted >= begin && wanted - begin < part.p_memsz) is_here = true;
    if (part.p_type == PT_GNU_EH_FRAME) frames = reinterpret_cast<void*>(begin);
  }
  if (!is_here || frames == nullptr) return 0;
  result.dlfo_eh_frame = frames;
  return 1;
}

int _dl_find_object(void* address, dl_find_object* result) noexcept {
  *result = {};
  result->dlfo_map_start = address;
  return dl_iterate_phdr(find_object, result) == 1 ? 0 : -1;
}
#endif

// ---- 2.38: newer headers call these under other names, which also take binary numbers

#if __GLIBC_PREREQ(2, 38)
#define OLD(type, name)                                                   \
  type old_##name(const char*, char**, int) noexcept __asm__(#name);      \
  type __isoc23_##name(const char* text, char** end, int base) noexcept { \
    return old_##name(text, end, base);                                   \
  }
OLD(long, strtol)
OLD(unsigned long, strtoul)
OLD(long long, strtoll)
OLD(unsigned long long, strtoull)
#undef OLD
int old_vsscanf(const char*, const char*, va_list) noexcept __asm__("__isoc99_vsscanf");
int __isoc23_vsscanf(const char* text, const char* format, va_list values) noexcept {
  return old_vsscanf(text, format, values);
}
int __isoc23_sscanf(const char* text, const char* format, ...) noexcept {
  va_list values;
  va_start(values, format);
  const int count = old_vsscanf(text, format, values);
  va_end(values);
  return count;
}
#endif
}

/* Faults in the system calls that change files below one folder: a kill, an error, or a record of every call.
 *
 * Preloaded into a Python process; `faults_arm` switches it on. Each call that changes something below the folder is
 * counted; at number `at` the process is killed (of a write, half is done first) or the call fails with `error`. With a
 * record, every call is written to it, data included, so that the states of the disk after a power cut can be made.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long left_until_fault, calls;
static int fault_error, record = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void faults_arm(const char *path, long at, int error, int record_fd) {
    snprintf(folder, sizeof folder, "%s", path);
    left_until_fault = at;
    fault_error = error;
    record = record_fd;
    calls = 0;
}

long faults_calls(void) { return calls; }

static int is_inside(const char *path) {
    size_t length = strlen(folder);
    return length && path && !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

static const char *path_of(int fd, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    buffer[length < 0 ? 0 : length] = 0;
    return buffer;
}

/* One record: kind, two paths, a number, and data; lengths first. */
static void note(char kind, const char *a, const char *b, int64_t number, const void *data, int64_t size) {
    if (record < 0) return;
    char head[PATH_MAX * 2 + 64];
    int length = snprintf(head, sizeof head, "%c\t%s\t%s\t%lld\t%lld\n", kind, a, b ? b : "", (long long)number,
                          (long long)size);
    REAL(write)(record, head, length);
    if (size) REAL(write)(record, data, size);
}

/* Counts a call; nonzero if it must fail, and then errno is set. Kills the process if that is the fault. */
static int fault(void) {
    calls++;
    if (!left_until_fault || --left_until_fault) return 0;
    if (!fault_error) raise(SIGKILL);
    errno = fault_error;
    return 1;
}

static int open_any(const char *path, int flags, mode_t mode, int (*real)(const char *, int, ...)) {
    int changes = is_inside(path) && (flags & (O_CREAT | O_TRUNC));
    int existed = changes && access(path, F_OK) == 0;
    if (changes && fault()) return -1;
    int fd = real(path, flags, mode);
    if (changes && fd >= 0 && !existed) note('c', path, 0, 0, 0, 0);
    return fd;
}

#define OPEN(name)                                              \
    int name(const char *path, int flags, ...) {                \
        mode_t mode = 0;                                        \
        if (flags & (O_CREAT | O_TMPFILE)) {                    \
            va_list more;                                       \
            va_start(more, flags);                              \
            mode = va_arg(more, mode_t);                        \
            va_end(more);                                       \
        }                                                       \
        return open_any(path, flags, mode, REAL(name));         \
    }
OPEN(open)
OPEN(open64)

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH_MAX];
    if (!folder[0] || !is_inside(path_of(fd, path))) return REAL(write)(fd, data, size);
    if (left_until_fault == 1 && !fault_error) {
        REAL(write)(fd, data, size / 2);
        raise(SIGKILL);
    }
    if (fault()) return -1;
    off_t at = fcntl(fd, F_GETFL) & O_APPEND ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
    ssize_t written = REAL(write)(fd, data, size);
    if (written > 0) note('w', path, 0, at, data, written);
    return written;
}

int fsync(int fd) {
    char path[PATH_MAX];
    if (!folder[0] || !is_inside(path_of(fd, path))) return REAL(fsync)(fd);
    if (fault()) return -1;
    note('s', path, 0, 0, 0, 0);
    return REAL(fsync)(fd);
}

int rename(const char *from, const char *to) {
    if (!is_inside(to)) return REAL(rename)(from, to);
    if (fault()) return -1;
    int result = REAL(rename)(from, to);
    if (!result) note('r', from, to, 0, 0, 0);
    return result;
}

int unlink(const char *path) {
    if (!is_inside(path)) return REAL(unlink)(path);
    if (fault()) return -1;
    int result = REAL(unlink)(path);
    if (!result) note('u', path, 0, 0, 0, 0);
    return result;
}

int mkdir(const char *path, mode_t mode) {
    if (!is_inside(path)) return REAL(mkdir)(path, mode);
    if (fault()) return -1;
    int result = REAL(mkdir)(path, mode);
    if (!result) note('m', path, 0, 0, 0, 0);
    return result;
}

static int truncate_any(int fd, int64_t length, int (*real)(int, off_t)) {
    char path[PATH_MAX];
    if (!folder[0] || !is_inside(path_of(fd, path))) return real(fd, length);
    if (fault()) return -1;
    int result = real(fd, length);
    if (!result) note('t', path, 0, length, 0, 0);
    return result;
}

int ftruncate(int fd, off_t length) { return truncate_any(fd, length, REAL(ftruncate)); }
int ftruncate64(int fd, off64_t length) { return truncate_any(fd, length, (int (*)(int, off_t))REAL(ftruncate64)); }

/* What a process does to the files under one folder: recorded, and made to fail where that is asked.

   Preloaded. trust_watch(folder, log) begins; trust_fail(after, error, how) lets the call that comes
   `after` others fail with `error`: how 0, that one; 1, all from then on; 2, writes are short; 3, a
   call that only reads (opens, reads, asks for a size), that one; 4, all renames from then on; 5,
   the process is killed in the place of a call that is no reading one. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_nbytes;
static int log_fd = -1;
static long left = -1;
static int error_number, manner, resting;
static long n_fired;

#define REAL(type, name, ...) type (*real)(__VA_ARGS__) = dlsym(RTLD_NEXT, #name)

void trust_watch(const char *folder, const char *log) {
  root_nbytes = strlen(strcpy(root, folder));
  REAL(int, open, const char *, int, ...);
  if (*log) log_fd = real(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

void trust_fail(long after, int error, int how) {
  left = after, error_number = error, manner = how, n_fired = 0;
}

void trust_rest(int on) { resting = on; }

long trust_fired(void) { return n_fired; }

long trust_remaining(void) { return left; }

/* The path within the folder, or NULL. */
static const char *inside(const char *path) {
  if (!root_nbytes || strncmp(path, root, root_nbytes) || path[root_nbytes] != '/') return NULL;
  return path + root_nbytes + 1;
}

static const char *path_of(int folder, const char *path, char *room) {
  char link[64];
  ssize_t n = 0;
  if (!path || *path != '/') {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    n = folder == AT_FDCWD ? (getcwd(room, PATH_MAX) ? (ssize_t)strlen(room) : -1)
                           : readlink(link, room, PATH_MAX - 1);
    if (n < 0) return NULL;
    room[n] = 0;
    if (!path) return inside(room);
    room[n++] = '/';
  }
  strncpy(room + n, path, PATH_MAX - n - 1);
  return inside(room);
}

static int counted(void) {
  if (left < 0 || resting) return 0;
  if (left > 0) return left--, 0;
  if (manner == 5) kill(getpid(), SIGKILL);
  if (manner != 1 && manner != 4) left = -1;
  n_fired++;
  errno = error_number;
  return 1;
}

static int fails(void) { return (manner < 2 || manner == 5) && counted(); }

static int reading_fails(void) { return manner == 3 && counted(); }

static size_t shortened(size_t n) {
  if (left < 0 || resting || manner != 2 || n < 2) return n;
  if (left > 0) return left--, n;
  n_fired++;
  return n / 2;
}

static void record(const char *what, const char *a, const char *b, long at, const void *data, size_t n) {
  char head[3 * PATH_MAX];
  if (log_fd < 0) return;
  int kept = errno;
  int length = snprintf(head, sizeof head, "%s\t%s\t%s\t%ld\t%zu\n", what, a, b, at, data ? n : 0);
  struct iovec parts[] = {{head, length}, {(void *)data, data ? n : 0}};
  REAL(ssize_t, writev, int, const struct iovec *, int);
  if (real(log_fd, parts, 2) < 0) abort();
  errno = kept;
}

#define WRITE_AT(NAME) \
  ssize_t NAME(int fd, const void *data, size_t n, off_t at) { \
    char room[PATH_MAX]; \
    const char *path = path_of(fd, NULL, room); \
    REAL(ssize_t, NAME, int, const void *, size_t, off_t); \
    if (path && fails()) return -1; \
    ssize_t done = real(fd, data, path ? shortened(n) : n, at); \
    if (path && done > 0) record("write", path, "", at, data, done); \
    return done; \
  }
WRITE_AT(pwrite)
WRITE_AT(pwrite64)

static off_t place(int fd) {
  struct stat status;
  if (fcntl(fd, F_GETFL) & O_APPEND) return fstat(fd, &status) ? 0 : status.st_size;
  return lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *data, size_t n) {
  char room[PATH_MAX];
  const char *path = path_of(fd, NULL, room);
  REAL(ssize_t, write, int, const void *, size_t);
  if (!path) return real(fd, data, n);
  if (fails()) return -1;
  off_t at = place(fd);
  ssize_t done = real(fd, data, shortened(n));
  if (done > 0) record("write", path, "", at, data, done);
  return done;
}

ssize_t writev(int fd, const struct iovec *parts, int n_parts) {
  char room[PATH_MAX];
  const char *path = path_of(fd, NULL, room);
  REAL(ssize_t, writev, int, const struct iovec *, int);
  if (!path) return real(fd, parts, n_parts);
  ssize_t all = 0;
  for (int k = 0; k < n_parts; k++) { /* a part at a time, so that any of them can be the last */
    ssize_t done = write(fd, parts[k].iov_base, parts[k].iov_len);
    if (done < 0) return all ? all : -1;
    all += done;
    if ((size_t)done < parts[k].iov_len) break;
  }
  return all;
}

#define WRITE_PARTS_AT(NAME, MORE, FLAGS) \
  ssize_t NAME(int fd, const struct iovec *parts, int n_parts, off_t at MORE) { \
    char room[PATH_MAX]; \
    REAL(ssize_t, NAME, int, const struct iovec *, int, off_t MORE); \
    if (!path_of(fd, NULL, room)) return real(fd, parts, n_parts, at FLAGS); \
    ssize_t all = 0; \
    for (int k = 0; k < n_parts; k++) { \
      ssize_t done = pwrite(fd, parts[k].iov_base, parts[k].iov_len, at + all); \
      if (done < 0) return all ? all : -1; \
      all += done; \
      if ((size_t)done < parts[k].iov_len) break; \
    } \
    return all; \
  }
#define NOTHING
#define COMMA ,
WRITE_PARTS_AT(pwritev, NOTHING, NOTHING)
WRITE_PARTS_AT(pwritev64, NOTHING, NOTHING)
WRITE_PARTS_AT(pwritev2, COMMA int flags, COMMA flags)
WRITE_PARTS_AT(pwritev64v2, COMMA int flags, COMMA flags)

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t n, unsigned flags) {
  char room[PATH_MAX];
  REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
  if (path_of(in, NULL, room) && reading_fails()) return -1;
  if (!path_of(out, NULL, room)) return real(in, from, out, to, n, flags);
  errno = EOPNOTSUPP; /* then it is copied by reading and writing, which are seen here */
  return -1;
}

#define SIZE(NAME) \
  int NAME(int fd, off_t n) { \
    char room[PATH_MAX]; \
    const char *path = path_of(fd, NULL, room); \
    REAL(int, NAME, int, off_t); \
    if (path && fails()) return -1; \
    int failed = real(fd, n); \
    if (path && !failed) record("size", path, "", n, NULL, 0); \
    return failed; \
  }
SIZE(ftruncate)
SIZE(ftruncate64)

#define SYNC(NAME) \
  int NAME(int fd) { \
    char room[PATH_MAX]; \
    const char *path = path_of(fd, NULL, room); \
    struct stat status; \
    REAL(int, NAME, int); \
    if (!path && strcmp(room, root)) return real(fd); \
    if (fails()) return -1; \
    int folder = !fstat(fd, &status) && S_ISDIR(status.st_mode); \
    record(folder ? "sync folder" : "sync", path ? path : "", "", 0, NULL, 0); \
    return 0; \
  }
SYNC(fsync)
SYNC(fdatasync)

static int opened(const char *path, int flags, int fd) {
  if (fd >= 0 && flags & O_CREAT) record("create", path, "", 0, NULL, 0);
  if (fd >= 0 && flags & O_TRUNC) record("size", path, "", 0, NULL, 0);
  return fd;
}

#define OPEN_AT(NAME) \
  int NAME(int folder, const char *name, int flags, ...) { \
    char room[PATH_MAX]; \
    va_list more; \
    va_start(more, flags); \
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0; \
    va_end(more); \
    REAL(int, NAME, int, const char *, int, ...); \
    const char *path = path_of(folder, name, room); \
    if (path && reading_fails()) return -1; \
    if (!path || !(flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR))) return real(folder, name, flags, mode); \
    if (fails()) return -1; \
    return opened(path, flags, real(folder, name, flags, mode)); \
  }
OPEN_AT(openat)
OPEN_AT(openat64)

#define OPEN(NAME) \
  int NAME(const char *name, int flags, ...) { \
    va_list more; \
    va_start(more, flags); \
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0; \
    va_end(more); \
    return openat(AT_FDCWD, name, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define TWO_NAMES(NAME, WHAT, HEAD, A, B, CALL, ...) \
  int NAME HEAD { \
    char first[PATH_MAX], second[PATH_MAX]; \
    const char *a = path_of A, *b = path_of B; \
    REAL(int, NAME, __VA_ARGS__); \
    int renames = manner == 4 && strcmp(WHAT, "link"); \
    if ((a || b) && (renames ? counted() : fails())) return -1; \
    int failed = real CALL; \
    if (!failed && (a || b)) record(WHAT, a ? a : "", b ? b : "", 0, NULL, 0); \
    return failed; \
  }
TWO_NAMES(rename, "rename", (const char *x, const char *y), (AT_FDCWD, x, first), (AT_FDCWD, y, second), (x, y), const char *, const char *)
TWO_NAMES(renameat, "rename", (int f, const char *x, int g, const char *y), (f, x, first), (g, y, second), (f, x, g, y), int, const char *, int, const char *)
TWO_NAMES(renameat2, flags & 2 ? "exchange" : "rename", (int f, const char *x, int g, const char *y, unsigned flags), (f, x, first), (g, y, second), (f, x, g, y, flags), int, const char *, int, const char *, unsigned)
TWO_NAMES(link, "link", (const char *x, const char *y), (AT_FDCWD, x, first), (AT_FDCWD, y, second), (x, y), const char *, const char *)
TWO_NAMES(linkat, "link", (int f, const char *x, int g, const char *y, int flags), (f, x, first), (g, y, second), (f, x, g, y, flags), int, const char *, int, const char *, int)

#define ONE_NAME(NAME, WHAT, HEAD, A, CALL, ...) \
  int NAME HEAD { \
    char room[PATH_MAX]; \
    const char *path = path_of A; \
    REAL(int, NAME, __VA_ARGS__); \
    if (path && fails()) return -1; \
    int failed = real CALL; \
    if (path && !failed) record(WHAT, path, "", 0, NULL, 0); \
    return failed; \
  }
ONE_NAME(mkdir, "folder", (const char *x, mode_t mode), (AT_FDCWD, x, room), (x, mode), const char *, mode_t)
ONE_NAME(mkdirat, "folder", (int f, const char *x, mode_t mode), (f, x, room), (f, x, mode), int, const char *, mode_t)

/* What is removed fails only where all does, since nothing then could be tidied. */
#define REMOVE(NAME, HEAD, A, CALL, ...) \
  int NAME HEAD { \
    char room[PATH_MAX]; \
    const char *path = path_of A; \
    REAL(int, NAME, __VA_ARGS__); \
    if (path && (manner == 1 || manner == 5) && fails()) return -1; \
    int failed = real CALL; \
    if (path && !failed) record("remove", path, "", 0, NULL, 0); \
    return failed; \
  }
REMOVE(unlink, (const char *x), (AT_FDCWD, x, room), (x), const char *)
REMOVE(rmdir, (const char *x), (AT_FDCWD, x, room), (x), const char *)
REMOVE(unlinkat, (int f, const char *x, int flags), (f, x, room), (f, x, flags), int, const char *, int)

#define READ(TYPE, NAME, HEAD, PATH, CALL, ...) \
  TYPE NAME HEAD { \
    char room[PATH_MAX]; \
    REAL(TYPE, NAME, __VA_ARGS__); \
    return PATH && reading_fails() ? -1 : real CALL; \
  }
#define READ_OPEN(NAME, HEAD, CALL, ...) READ(ssize_t, NAME, HEAD, path_of(fd, NULL, room), CALL, int, __VA_ARGS__)
READ_OPEN(read, (int fd, void *to, size_t n), (fd, to, n), void *, size_t)
READ_OPEN(pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), void *, size_t, off_t)
READ_OPEN(pread64, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), void *, size_t, off_t)
READ_OPEN(preadv, (int fd, const struct iovec *to, int n, off_t at), (fd, to, n, at), const struct iovec *, int, off_t)
READ_OPEN(preadv64, (int fd, const struct iovec *to, int n, off_t at), (fd, to, n, at), const struct iovec *, int, off_t)
READ(int, fstat, (int fd, struct stat *s), path_of(fd, NULL, room), (fd, s), int, struct stat *)
READ(int, fstat64, (int fd, struct stat64 *s), path_of(fd, NULL, room), (fd, s), int, struct stat64 *)
READ(int, stat, (const char *x, struct stat *s), path_of(AT_FDCWD, x, room), (x, s), const char *, struct stat *)
READ(int, stat64, (const char *x, struct stat64 *s), path_of(AT_FDCWD, x, room), (x, s), const char *, struct stat64 *)

/* Injects faults into a running daemon. It is loaded before libc (LD_PRELOAD) and controlled through a page
 * that the test maps too (TANDEM_SHIM names its file; lib.py has the same layout). It
 *   - fails the k-th allocation and those after it, and counts allocations that are not freed;
 *   - makes the k-th system call of a kind short, or fail with an errno that the kernel may return there;
 *   - holds one thread for as long as the test wants, immediately (SIGUSR2) or at its next allocation.
 * It sees only calls by the program or a shared library, not those inside libc. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

typedef enum fault_kind { NO_FAULT, SHORT_IO, FAIL_EINTR, FAIL_EAGAIN, FAIL_EMFILE, FAIL_ENOSPC } fault_kind;

enum { SITES = 256 };

typedef struct control {
  _Atomic uint64_t n_allocs, fail_alloc_at, fail_allocs, n_allocs_failed;
  _Atomic int64_t n_live;
  _Atomic uint64_t kind, n_calls, fail_call_at, fail_calls, n_calls_failed;
  _Atomic uint64_t hold_tid, held, hold_at_alloc;
  _Atomic uint64_t n_sites, sites[SITES]; /* return addresses at which a call was made to fail */
} control;

static control none, *page = &none;

/* ---- one thread is held ---- */

static _Thread_local uint64_t my_tid;

static void hold(void)
{
  atomic_store(&page->held, 1);
  while (atomic_load(&page->hold_tid) == my_tid)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  atomic_store(&page->held, 0);
}

static void hold_if_asked(void)
{
  if (!my_tid)
    my_tid = (uint64_t)syscall(SYS_gettid);
  if (atomic_load_explicit(&page->hold_tid, memory_order_relaxed) == my_tid)
    hold();
}

static void on_signal(int signum)
{
  int e = errno;
  hold_if_asked();
  errno = e;
}

/* The daemon's threads block signals, but this one must reach them all. */
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
  static int (*real)(int, const sigset_t *, sigset_t *);
  sigset_t mine;
  if (!real)
    real = dlsym(RTLD_NEXT, "pthread_sigmask");
  if (!set)
    return real(how, set, old);
  mine = *set;
  if (how != SIG_UNBLOCK)
    sigdelset(&mine, SIGUSR2);
  return real(how, &mine, old);
}

__attribute__((constructor)) static void begin(void)
{
  const char *path = getenv("TANDEM_SHIM");
  int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0)
    return;
  void *p = mmap(NULL, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (p == MAP_FAILED)
    return;
  page = p;
  sigaction(SIGUSR2, &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESTART}, NULL);
}

/* ---- allocations ---- */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static bool may_allocate(void)
{
  uint64_t i = atomic_fetch_add(&page->n_allocs, 1) + 1, at = atomic_load(&page->fail_alloc_at);
  if (atomic_load_explicit(&page->hold_at_alloc, memory_order_relaxed))
    hold_if_asked();
  if (at == 0 || i < at || i >= at + atomic_load(&page->fail_allocs))
    return true;
  atomic_fetch_add(&page->n_allocs_failed, 1);
  errno = ENOMEM;
  return false;
}

static void *counted(void *p)
{
  if (p)
    atomic_fetch_add(&page->n_live, 1);
  return p;
}

void *malloc(size_t n) { return may_allocate() ? counted(__libc_malloc(n)) : NULL; }
void *calloc(size_t n, size_t size) { return may_allocate() ? counted(__libc_calloc(n, size)) : NULL; }
void *memalign(size_t align, size_t n) { return may_allocate() ? counted(__libc_memalign(align, n)) : NULL; }
void *aligned_alloc(size_t align, size_t n) { return memalign(align, n); }

int posix_memalign(void **out, size_t align, size_t n)
{
  void *p = memalign(align, n);
  if (!p)
    return ENOMEM;
  *out = p;
  return 0;
}

void *realloc(void *p, size_t n)
{
  if (!may_allocate())
    return NULL;
  void *q = __libc_realloc(p, n);
  return p ? q : counted(q);
}

void free(void *p)
{
  if (p)
    atomic_fetch_sub(&page->n_live, 1);
  __libc_free(p);
}

/* ---- system calls ---- */

static bool now(fault_kind kind, const void *site)
{
  if (atomic_load(&page->kind) != (uint64_t)kind)
    return false;
  uint64_t i = atomic_fetch_add(&page->n_calls, 1) + 1, at = atomic_load(&page->fail_call_at);
  if (at == 0 || i < at || i >= at + atomic_load(&page->fail_calls))
    return false;
  atomic_fetch_add(&page->n_calls_failed, 1);
  uint64_t n = atomic_load(&page->n_sites), key = (uint64_t)(uintptr_t)site << 3 | kind;
  for (uint64_t s = 0; s < n && s < SITES; s++)
    if (page->sites[s] == key)
      return true;
  if (n < SITES)
    page->sites[atomic_fetch_add(&page->n_sites, 1) % SITES] = key;
  return true;
}

static bool fails(fault_kind kind, int e, const void *site)
{
  bool f = now(kind, site);
  if (f)
    errno = e;
  return f;
}

/* Files and eventfd counters return neither EINTR nor EAGAIN: a file never waits, a counter is never full. */
static mode_t type_of(int fd)
{
  struct stat st;
  return syscall(SYS_fstat, fd, &st) == 0 ? st.st_mode & S_IFMT : 0;
}

static bool never_blocks(int fd) { return (syscall(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK) != 0; }
static bool is_stream(int fd) { return type_of(fd) == S_IFSOCK || type_of(fd) == S_IFIFO; }
/* libuv drops a signal if its own pipe is full, which no run of this test can cause. */
static bool may_be_full(int fd) { return type_of(fd) == S_IFSOCK && never_blocks(fd); }

static bool stream_fails(int fd, const void *site)
{
  if (atomic_load(&page->kind) == NO_FAULT || !is_stream(fd))
    return false;
  return fails(FAIL_EINTR, EINTR, site) || (may_be_full(fd) && fails(FAIL_EAGAIN, EAGAIN, site));
}

static bool file_is_full(int fd, const void *site)
{
  return atomic_load(&page->kind) == FAIL_ENOSPC && type_of(fd) == S_IFREG &&
         fails(FAIL_ENOSPC, ENOSPC, site);
}

/* Sockets and files may return less than requested. Counters are complete, and so is what fits into a pipe.
 */
static size_t cut(int fd, size_t n, const void *site)
{
  mode_t type = atomic_load(&page->kind) == SHORT_IO ? type_of(fd) : 0;
  return n > 1 && (type == S_IFSOCK || type == S_IFREG) && now(SHORT_IO, site) ? 1 : n;
}

#define HERE __builtin_return_address(0)

ssize_t read(int fd, void *p, size_t n)
{
  return stream_fails(fd, HERE) ? -1 : syscall(SYS_read, fd, p, cut(fd, n, HERE));
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
  return syscall(SYS_pread64, fd, p, cut(fd, n, HERE), at);
}
ssize_t pread64(int fd, void *p, size_t n, off_t at)
{
  return syscall(SYS_pread64, fd, p, cut(fd, n, HERE), at);
}

ssize_t recv(int fd, void *p, size_t n, int flags)
{
  return stream_fails(fd, HERE) ? -1 : syscall(SYS_recvfrom, fd, p, cut(fd, n, HERE), flags, NULL, NULL);
}

ssize_t write(int fd, const void *p, size_t n)
{
  return stream_fails(fd, HERE) || file_is_full(fd, HERE) ? -1 : syscall(SYS_write, fd, p, cut(fd, n, HERE));
}

ssize_t send(int fd, const void *p, size_t n, int flags)
{
  return stream_fails(fd, HERE) ? -1 : syscall(SYS_sendto, fd, p, cut(fd, n, HERE), flags, NULL, 0);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
  if (stream_fails(fd, HERE) || file_is_full(fd, HERE))
    return -1;
  size_t first = cut(fd, v[0].iov_len, HERE);
  return first < v[0].iov_len ? syscall(SYS_write, fd, v[0].iov_base, first) : syscall(SYS_writev, fd, v, n);
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
  if (stream_fails(fd, HERE))
    return -1;
  size_t first = m->msg_iovlen > 0 ? cut(fd, m->msg_iov[0].iov_len, HERE) : 0;
  return m->msg_iovlen > 0 && first < m->msg_iov[0].iov_len
             ? syscall(SYS_sendto, fd, m->msg_iov[0].iov_base, first, flags, NULL, 0)
             : syscall(SYS_sendmsg, fd, m, flags);
}

int accept4(int fd, struct sockaddr *from, socklen_t *n, int flags)
{
  return stream_fails(fd, HERE) || fails(FAIL_EMFILE, EMFILE, HERE)
             ? -1
             : (int)syscall(SYS_accept4, fd, from, n, flags);
}

static int open_at(int dir, const char *path, int flags, mode_t mode, const void *site)
{
  if (fails(FAIL_EMFILE, EMFILE, site) || fails(FAIL_EINTR, EINTR, site) ||
      ((flags & O_CREAT) != 0 && fails(FAIL_ENOSPC, ENOSPC, site)))
    return -1;
  return (int)syscall(SYS_openat, dir, path, flags, mode);
}

static mode_t mode_of(int flags, va_list args)
{
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
}

#define OPEN(name, dir, ...)                                                                                 \
  int name(__VA_ARGS__, int flags, ...)                                                                      \
  {                                                                                                          \
    va_list args;                                                                                            \
    va_start(args, flags);                                                                                   \
    mode_t mode = mode_of(flags, args);                                                                      \
    va_end(args);                                                                                            \
    return open_at(dir, path, flags, mode, HERE);                                                            \
  }
OPEN(open, AT_FDCWD, const char *path)
OPEN(open64, AT_FDCWD, const char *path)
OPEN(openat, dir, int dir, const char *path)
OPEN(openat64, dir, int dir, const char *path)

int socket(int domain, int type, int protocol)
{
  return fails(FAIL_EMFILE, EMFILE, HERE) ? -1 : (int)syscall(SYS_socket, domain, type, protocol);
}

int fsync(int fd) { return file_is_full(fd, HERE) ? -1 : (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return file_is_full(fd, HERE) ? -1 : (int)syscall(SYS_fdatasync, fd); }
int rename(const char *from, const char *to)
{
  return fails(FAIL_ENOSPC, ENOSPC, HERE) ? -1 : (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}

ssize_t getrandom(void *p, size_t n, unsigned flags)
{
  return fails(FAIL_EINTR, EINTR, HERE) ? -1 : syscall(SYS_getrandom, p, n, flags);
}

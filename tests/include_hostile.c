/* include_hostile.c -- valid C and C++, for the compiler alone: every header of C and POSIX first,
 * macros that headers of other systems and programs define, then mlcore.h; after it these are what
 * they were before. */
#define _GNU_SOURCE 1
#include <assert.h>
#include <complex.h>
#include <ctype.h>
#include <errno.h>
#include <fenv.h>
#include <float.h>
#include <inttypes.h>
#include <iso646.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>
#include <time.h>
#include <uchar.h>
#include <wchar.h>
#include <wctype.h>
#ifndef __cplusplus
#  include <stdatomic.h>
#  include <stdnoreturn.h>
#  include <threads.h>
#endif
#if defined(__unix__)
#  include <aio.h>
#  include <arpa/inet.h>
#  include <cpio.h>
#  include <dirent.h>
#  include <dlfcn.h>
#  include <fcntl.h>
#  include <fmtmsg.h>
#  include <fnmatch.h>
#  include <ftw.h>
#  include <glob.h>
#  include <grp.h>
#  include <iconv.h>
#  include <langinfo.h>
#  include <libgen.h>
#  include <monetary.h>
#  include <mqueue.h>
#  include <net/if.h>
#  include <netdb.h>
#  include <netinet/in.h>
#  include <netinet/tcp.h>
#  include <nl_types.h>
#  include <poll.h>
#  include <pthread.h>
#  include <pwd.h>
#  include <regex.h>
#  include <sched.h>
#  include <search.h>
#  include <semaphore.h>
#  include <spawn.h>
#  include <strings.h>
#  include <sys/file.h>
#  include <sys/ioctl.h>
#  include <sys/ipc.h>
#  include <sys/mman.h>
#  include <sys/msg.h>
#  include <sys/param.h>
#  include <sys/resource.h>
#  include <sys/select.h>
#  include <sys/sem.h>
#  include <sys/shm.h>
#  include <sys/socket.h>
#  include <sys/stat.h>
#  include <sys/statvfs.h>
#  include <sys/syscall.h>
#  include <sys/sysmacros.h>
#  include <sys/time.h>
#  include <sys/times.h>
#  include <sys/types.h>
#  include <sys/uio.h>
#  include <sys/un.h>
#  include <sys/utsname.h>
#  include <sys/wait.h>
#  include <syslog.h>
#  include <tar.h>
#  include <termios.h>
#  include <ulimit.h>
#  include <unistd.h>
#  include <utime.h>
#  include <utmpx.h>
#  include <wordexp.h>
#endif

/* <windows.h> and what it includes; a program may have chosen these, too. */
#undef ERROR
#undef round
#undef min
#undef max
#undef near
#undef far
#undef small
#undef hyper
#undef interface
#define near
#define far
#define NEAR near
#define FAR far
#define pascal
#define cdecl
#define small char
#define hyper long long
#define interface struct
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define IN
#define OUT
#define OPTIONAL
#define CONST const
#define VOID void
#define ERROR 0
#define NO_ERROR 0L
#define DELETE 0x00010000L
#define TEXT(quote) L##quote
#define GetObject GetObjectA
#define Yield()
/* X11, Arduino, 4.2BSD and programs. */
#define None 0L
#define Bool int
#define Status int
#define Success 0
#define Always 2
#define PI 3.14159f
#define HIGH 1
#define LOW 0
#define abs(x) ((x) > 0 ? (x) : -(x))
#define round(x) ((long)(x))
#define swap(a, b) do { } while (0)
#define bcopy(from, to, n) memmove(to, from, n)
#ifndef __cplusplus
#  define class struct
#  define new make
#  define private static
#  define public
#endif

#include "../mlcore.h"
#define MLCORE_IMPLEMENTATION
#include "../mlcore.h"

typedef small still_char[sizeof(small) == 1 && min(2, 3) == 2 && max(2, 3) == 3 ? 1 : -1];
typedef hyper still_long[sizeof(hyper) == 8 ? 1 : -1];
interface near still_struct { far int x; };
#ifndef __cplusplus
typedef char still_generic[sizeof(sqrt(1.0f)) == sizeof(float) && sizeof(log(1.0f)) == 4 ? 1 : -1];
#endif

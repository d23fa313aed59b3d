/* vsnprintf.h -- formats text on boards whose C library is newlib-nano
 *
 * That library takes what stands after a %lld from a wrong place, and for %g it needs
 * -u _printf_float and a heap. vsnprintf.c does what C99 says for what mlcore.h formats: %s %c %d
 * %u %x %p %f %e %g, l and ll, -, 0, a width, a precision, *. Compile the implementation with
 * -include vsnprintf.h, or with an #include of it above that of mlcore.h.
 */
#ifndef BOARD_VSNPRINTF_H
#define BOARD_VSNPRINTF_H

#include <stdarg.h>
#include <stddef.h>

int board_vsnprintf(char *to, size_t n, const char *format, va_list args);
#ifndef MLC_VSNPRINTF
#  define MLC_VSNPRINTF board_vsnprintf
#endif

#endif

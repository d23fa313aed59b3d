/* compile.h -- files of C that a test has written, by the compilers of the system; POSIX */
#ifndef COMPILE_H
#define COMPILE_H

#include "files.h"

#define STRICT "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"

/* Runs a command with two texts in it; its status. */
FILES_FN int runs(const char *format, const char *a, const char *b)
{
    char command[1400];
    snprintf(command, sizeof command, format, a, b);
    return system(command);
}

FILES_FN bool has_compiler(void)
{
    static int has = -1;
    if (has < 0) has = runs("cc --version%s%s >/dev/null 2>&1", "", "") == 0;
    if (!has) printf("  skipped: there is no cc\n");
    return has != 0;
}

/* Compiles a program strictly, as PATH.out. */
FILES_FN bool compiles_as_c(const char *path)
{
    return CHECK_EQ(runs("cc -std=c99 " STRICT " -O1 -o '%s.out' '%s' -lm", path, path), 0);
}

/* Compiles a file strictly as C++, where there is a compiler. */
FILES_FN bool compiles_as_cpp(const char *path)
{
    if (runs("c++ --version%s%s >/dev/null 2>&1", "", "") != 0) return true;
    return CHECK_EQ(runs("c++ -std=c++11 " STRICT " -fsyntax-only -x c++ '%s'%s", path, ""), 0);
}

#endif

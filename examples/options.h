/* options.h -- command lines of the example programs: a table of what there is, and one loop */
#ifndef EXAMPLES_OPTIONS_H
#define EXAMPLES_OPTIONS_H

#include "../mlcore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One of the pointers is set: where the value goes. Without a name it is a file, given as it is. */
typedef struct option {
    const char  *name;                      /* "--seeds"                                      */
    const char **text;
    int         *number;                    /* lo .. hi                                       */
    int          lo, hi;
    mlc_dtype   *dtype;                     /* f32, bf16 or f16                               */
} option;

#define OPTION_FILE(to)                 { NULL, to, NULL, 0, 0, NULL }
#define OPTION_TEXT(name, to)           { name, to, NULL, 0, 0, NULL }
#define OPTION_NUMBER(name, to, lo, hi) { name, NULL, to, lo, hi, NULL }
#define OPTION_DTYPE(name, to)          { name, NULL, NULL, 0, 0, to }
#define OPTION_END                      { NULL, NULL, NULL, 0, 0, NULL }

static inline bool option_is_end(const option *o) { return !o->text && !o->number && !o->dtype; }

static inline bool option_number(const option *o, const char *text)
{
    char *end = NULL;
    long  v   = strtol(text, &end, 10);
    if (end == text || *end || v < o->lo || v > o->hi) return false;
    *o->number = (int)v;
    return true;
}

static inline bool option_dtype(const option *o, const char *text)
{
    static const mlc_dtype known[3] = { MLC_F32, MLC_BF16, MLC_F16 };
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, mlc_dtype_name(known[i]))) { *o->dtype = known[i]; return true; }
    return false;
}

/* False: there is no value, or not one of this kind. */
static inline bool option_set(const option *o, const char *value)
{
    if (!value) return false;
    if (o->number) return option_number(o, value);
    if (o->dtype) return option_dtype(o, value);
    *o->text = value;
    return true;
}

/* The option of this name, or for a word that begins with no '-' file number `files`. */
static inline const option *option_find(const option *list, const char *word, int files)
{
    for (; !option_is_end(list); list++)
        if (list->name ? !strcmp(list->name, word) : word[0] != '-' && files-- == 0) return list;
    return NULL;
}

/* Sets what the command line says; list ends with OPTION_END. True: go on. Else help was printed
 * (*status 0), or an error message (1): the program prints it and ends. */
static inline bool options_read(const char *program, const char *help, const option *list,
                                int argc, char **argv, int *status)
{
    int files = 0;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        *status = 0;
        if (!strcmp(word, "--help")) { fputs(help, stdout); return false; }
        const option *o  = option_find(list, word, files);
        const bool    ok = o && option_set(o, o->name ? argv[++i] : argv[i]);
        *status = 1;
        if (!ok) {
            fprintf(stderr, "%s: wrong argument %s\n%s", program, word, help);
            return false;
        }
        if (!o->name) files++;
    }
    return true;
}

#endif

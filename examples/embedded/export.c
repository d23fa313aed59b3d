/* export.c -- writes networks as C files that need no library, for run.sh
 *
 *   run     ./export FOLDER: NAME_f32.c and NAME_int8.c of MLPerf Tiny's networks and a 64-32-10
 *
 * Runs on the computer that compiles; exported.c runs them on the board. */
#include "tiny.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: export FOLDER\n");
        return 2;
    }
    mlc_ctx *ctx = mlc_ctx_create(NULL);
    for (int i = 0; i < 2 * TINY_NETS; i++) {
        const bool integers = i % 2 != 0;
        char       path[512];
        snprintf(path, sizeof path, "%s/%s_%s.c", argv[1], tiny_nets[i / 2].name,
                 integers ? "int8" : "f32");
        if (tiny_write(ctx, &tiny_nets[i / 2], integers, path) != MLC_OK) {
            fprintf(stderr, "export: %s: %s\n", path, mlc_error(ctx));
            return 1;
        }
    }
    mlc_ctx_free(ctx);
    return 0;
}

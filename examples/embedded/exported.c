/* exported.c -- runs a file of mlc_plan_write_c on the board: its self-test, then one run
 *
 *   build   run.sh: -DEXPORTED='"NAME.c"', with -DWEIGHTS=N and -DCODE=N, bytes that it measured;
 *           of a file with a self-test alone, such as a training step's, -DSTEP                 */
#define main self_test
#include EXPORTED
#undef main
#include "board.h"

#include <stdio.h>

#ifdef STEP
int main(void)
{
    const uint64_t start = board_instructions();
    if (self_test() != 0) return 1;
    printf("right, %lu instructions, %lu bytes of stack; code %d bytes\n",
           (unsigned long)(board_instructions() - start), board_stack(), CODE);
    return 0;
}
#else
static net_io io;

int main(void)
{
    net_reset(&io);
    memcpy(io.x0, net_test_x0, sizeof io.x0);
    const uint64_t start = board_instructions();
    if (net_run(&io) != 0) return 2;
    const unsigned long n = (unsigned long)(board_instructions() - start), stack = board_stack();
    if (self_test() != 0) return 1;
    printf("code %5d, weights %6d; RAM %6lu: memory %6d, inputs and outputs %5lu, stack %3lu; %9lu "
           "instructions\n", CODE, WEIGHTS, (unsigned long)NET_MEMORY + sizeof io + stack,
           NET_MEMORY, (unsigned long)sizeof io, stack, n);
    return 0;
}
#endif

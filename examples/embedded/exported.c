/* exported.c -- runs a file of mlc_plan_write_c on the board: its self-test, then one run
 *
 *   build   run.sh: -DEXPORTED='"NAME.c"', with -DWEIGHTS=N and -DCODE=N, bytes that it measured;
 *           with -DSTEP the file is a training step of 4 rows of 2 numbers and 2 classes, and
 *           learns the exclusive or                                                             */
#define main self_test
#include EXPORTED
#undef main
#include "board.h"

#include <stdio.h>

#ifdef STEP
static net_step net;

int main(void)
{
    static const float   x[8] = { 0, 0, 0, 1, 1, 0, 1, 1 };
    static const int32_t y[4] = { 0, 1, 1, 0 };
    unsigned long steps = 0;
    net_reset(&net);
    memcpy(net.x0, x, sizeof x);
    memcpy(net.x1, y, sizeof y);
    const uint64_t start = board_instructions();
    do {
        if (net_train(&net) != 0) return 2;
    } while (++steps < 5000 && !(net.y0[0] <= 0.01f));
    const unsigned long n = (unsigned long)(board_instructions() - start), stack = board_stack();
    if (!(net.y0[0] <= 0.01f)) return 1;
    printf("code %5d, weights %6d; RAM %6lu: memory %6d, the struct %5lu, stack %3lu; %9lu "
           "instructions a step, %lu steps\n", CODE, WEIGHTS,
           (unsigned long)NET_MEMORY + sizeof net + stack, NET_MEMORY, (unsigned long)sizeof net,
           stack, n / steps, steps);
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

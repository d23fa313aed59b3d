/* board.c -- start-up, timer and memory of QEMU's mps2-an386; replace it by your board's */
#include "board.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PAINT 0x5a5a5a5au

/* The linker's names are addresses. */
extern uint32_t board_data[], board_data_end[], board_data_in_flash[], board_flash_end[];
extern uint32_t board_bss[], board_bss_end[], board_stack_low[], board_stack_top[], end[];

int  main(void);
void __libc_init_array(void);
void initialise_monitor_handles(void);          /* newlib's: printf goes to QEMU's terminal */
void _init(void), _fini(void);
void _init(void) {}
void _fini(void) {}

static volatile uint32_t *const fpu_access = (volatile uint32_t *)0xE000ED88u;
static volatile uint32_t *const timer = (volatile uint32_t *)0xE000E010u;
enum { CONTROL, RELOAD, VALUE };                /* registers of the timer */
static volatile uint32_t rounds;                /* of the timer, of 2^24 ticks */

static void tick(void) { rounds++; }

/* A fault ends the run with its own status. */
static void fault(void) { _exit(70); }

/* The stack is painted up to this function's frame: bytes that have changed were in use. */
__attribute__((noreturn, used)) void board_reset(void)
{
    uint32_t *to = board_data;
    *fpu_access |= 0xFu << 20;
    __asm__ volatile("dsb\n\tisb");
    for (const uint32_t *from = board_data_in_flash; to < board_data_end;) *to++ = *from++;
    for (to = board_bss; to < board_bss_end;) *to++ = 0;
    for (to = board_stack_low; to < (uint32_t *)__builtin_frame_address(0) - 32;) *to++ = PAINT;
    timer[RELOAD] = 0xFFFFFF;
    timer[VALUE] = 0;
    timer[CONTROL] = 7;                         /* on, with interrupt, the processor's clock */
    __libc_init_array();
    initialise_monitor_handles();
    exit(main());
}

typedef void (*vector)(void);
__attribute__((section(".vectors"), used)) static const vector vectors[16] = {
    (vector)(uintptr_t)board_stack_top, board_reset, fault, fault, fault, fault, fault,
    NULL, NULL, NULL, NULL, fault, fault, NULL, fault, tick };

/* QEMU runs one instruction a nanosecond (-icount shift=0), the timer ticks with 25 MHz. */
uint64_t board_instructions(void)
{
    uint32_t before, value;
    do {
        before = rounds;
        value = timer[VALUE];
    } while (before != rounds);
    return (((uint64_t)before << 24) + (0xFFFFFF - value)) * BOARD_STEP;
}

#ifdef MLC_VSNPRINTF
/* The program's printf in its place, for lines of up to 255 bytes. */
int board_printf(const char *format, ...)
{
    char    text[256];
    va_list args;
    va_start(args, format);
    int n = board_vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n >= (int)sizeof text) n = (int)sizeof text - 1;
    return (int)write(1, text, (size_t)n);
}
#endif

/* Bytes that are no longer painted were in use. */
unsigned long board_stack(void)
{
    const uint32_t *at = board_stack_low;
    while (*at == PAINT) at++;
    return (unsigned long)((uintptr_t)board_stack_top - (uintptr_t)at);
}

void board_report(size_t block)
{
    const unsigned long variables =
        (unsigned long)((uintptr_t)board_bss_end - (uintptr_t)board_data);
    const unsigned long heap = (unsigned long)((uintptr_t)sbrk(0) - (uintptr_t)end);
    const unsigned long stack = board_stack();
    printf("flash %lu bytes; RAM %lu: a block of %lu, %lu of other variables, %lu of stack, %lu of "
           "newlib's heap\n", (unsigned long)(uintptr_t)board_flash_end, variables + stack + heap,
           (unsigned long)block, variables - (unsigned long)block, stack, heap);
}

/* board.h -- what the programs ask of the board */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>
#include <stdint.h>

/* board_instructions: instructions since the start, in steps of BOARD_STEP; on a real chip, whose
 * timer counts cycles, cycles times BOARD_STEP.                                                */
#define BOARD_STEP 40
uint64_t board_instructions(void);
/* board_stack: bytes of stack that were in use at most, since the start.                       */
unsigned long board_stack(void);
/* board_report: prints the bytes of flash and of RAM that the program takes; block are those that
 * mlcore lives in.                                                                             */
void     board_report(size_t block);

#endif

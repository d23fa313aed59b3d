/* mlcore.c -- the implementation, compiled once, as C: the program's other sources include the
 * header alone */
#define MLCORE_IMPLEMENTATION
#include <mlcore.h>

/* flash.h -- what flash.c writes: digits of 8x8 pixels from 0 to 16, each followed by its label,
 * and weights of 64-32-10, as arrays and as a safetensors file */
#ifndef FLASH_H
#define FLASH_H

#include <stddef.h>

extern const int           flash_train_rows, flash_test_rows;
extern const unsigned char flash_train[][65], flash_test[][65];
extern const float         flash_weight0[], flash_bias0[], flash_weight2[], flash_bias2[];
extern const unsigned char flash_file[];
extern const size_t        flash_file_bytes;

#endif

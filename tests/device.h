/* device.h -- the device of device.c: its counters, and the switches that make it fail */
#ifndef DEVICE_H
#define DEVICE_H

#include "mlc_test.h"

#define KERNEL_NUMBER(name) KERNEL_##name,
enum { MLC_KERNELS(KERNEL_NUMBER) KERNEL_COUNT };

/* Of all devices together. */
extern struct test_device {
    struct {                           /* calls since the last memset, kernels by name         */
        int64_t copies[MLC_COPY_ON_DEVICE + 1], posts, polls, syncs, allocs, kernels[KERNEL_COUNT];
    } count;
    int        polls;                  /* the poll that a post is answered at                  */
    int64_t    leaked;                 /* blocks alive when their device was closed            */
    int64_t    break_at, calls;        /* the call of a kernel or a copy that fails; 0: none   */
    mlc_status breaks_with;
    int64_t    products;               /* calls of the kernel gemm                             */
    int32_t    tf32;                   /* of the last one                                      */
    int64_t    asked;                  /* calls with a workspace that a kernel asked for       */
    mlc_status registered;
} g_device;

/* A backend as "test", under another name. */
mlc_backend device_backend(const char *name);
/* A context on a device, freed with the test; NULL with *status. */
mlc_ctx *device_ctx(const char *name, mlc_status *status);

/* Its memory can be read and written between the two, as in a kernel. */
typedef struct device device;
void arena_open(device *d);
void arena_shut(device *d);

#endif

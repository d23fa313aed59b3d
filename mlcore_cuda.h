/* mlcore_cuda.h -- the device "cuda" of mlcore: one call makes it known, desc.device chooses it
 *
 *     #include "mlcore.h"
 *     #include "mlcore_cuda.h"
 *     if (mlc_cuda_register() != MLC_OK) puts(mlc_cuda_error());
 *     mlc_ctx_desc d = mlc_ctx_desc_make();
 *     d.device = "cuda";                        or "cuda:1"
 *
 * Link the object of mlcore_cuda.cu (make cuda) and, of the CUDA toolkit, cublasLt and cudart.
 * MIT license, see LICENSE. */
#ifndef MLCORE_CUDA_H
#define MLCORE_CUDA_H

#include "mlcore.h"

#ifdef __cplusplus
extern "C" {
#endif

/* mlc_cuda_register: makes the device "cuda" known to the process. Environment of the device:
 *   MLC_CUDA_BLOCKING=1 waits after each kernel, so that a failure names the one that failed.
 *   MLC_CUDA_OWN_GEMM=1 makes products without cuBLASLt.
 *   err    DEVICE: no driver or no card, and the program goes on without; mlc_cuda_error says why.
 *          A context is refused with DEVICE on a card below compute capability 8.0.
 *          ARG: the object was compiled against another mlcore.h, or "cuda" is registered already
 *   test: tests/cuda_host/                                                                    */
mlc_status mlc_cuda_register(void);

/* mlc_cuda_error: why mlc_cuda_register, or a context that was to be made on the device, failed
 *   last; "" if neither did.                                                                  */
const char *mlc_cuda_error(void);

/* mlc_cuda_backend: the backend that mlc_cuda_register registers, for a program that changes an
 *   entry before mlc_backend_register.                                                        */
void mlc_cuda_backend(mlc_backend *backend);

#ifdef __cplusplus
}
#endif
#endif

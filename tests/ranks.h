/* ranks.h -- what tests of ranks share: threads with a context each */
#ifndef RANKS_H
#define RANKS_H

#include "nets.h"

#ifndef MLC_NO_THREADS
#  include <pthread.h>

/* No check is made in a rank's thread: the harness counts on one thread. */

enum { RANKS = 5, VALUES = 512 };

typedef struct rank_job {              /* what a rank gets, and what it leaves                 */
    mlc_ctx   *ctx;
    mlc_comm   comm;
    int        kind;                   /* of the test                                          */
    mlc_status status;
    char       message[512];
    double     value[VALUES];
    int        values;
} rank_job;

typedef void (*rank_fn)(rank_job *j);
typedef struct rank_thread { rank_job *job; rank_fn fn; } rank_thread;

static inline void *rank_main(void *arg)
{
    rank_thread *t = (rank_thread *)arg;
    rank_job    *j = t->job;
    t->fn(j);
    if (j->status == MLC_OK) j->status = mlc_ctx_status(j->ctx);
    snprintf(j->message, sizeof j->message, "%s", mlc_error(j->ctx));
    mlc_comm_leave(&j->comm);
    return NULL;
}

/* Number k of row i of step t: the same data for any number of ranks. */
static inline double datum(int t, int i, int k)
{
    uint32_t u = (uint32_t)(t * 733 + i * 97 + k * 13 + 5);
    u = (u ^ u >> 7) * 2654435761u;
    return (double)(u >> 8) / 8388608.0 - 1.0;
}

/* Runs fn in n ranks, threads with a context each. */
static inline void run_ranks(int n, rank_fn fn, int kind, double deadline, rank_job *jobs)
{
    mlc_ctx      *ctx = test_ctx();
    mlc_comm      comms[RANKS];
    mlc_comm_desc d = mlc_comm_desc_make();
    pthread_t     threads[RANKS];
    rank_thread   of[RANKS];
    mlc_ctx_desc  own = test_desc();
    if (deadline > 0) d.deadline = deadline;
    own.threads = 1;
    memset(jobs, 0, (size_t)n * sizeof *jobs);
    if (!CHECK_EQ(mlc_comm_threads(ctx, n, &d, comms), MLC_OK)) return;
    for (int r = 0; r < n; r++) {
        jobs[r].ctx = mlc_ctx_create(&own);
        jobs[r].comm = comms[r];
        jobs[r].kind = kind;
        of[r].job = &jobs[r];
        of[r].fn = fn;
    }
    for (int r = 0; r < n; r++) pthread_create(&threads[r], NULL, rank_main, &of[r]);
    for (int r = 0; r < n; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < n; r++) mlc_ctx_free(jobs[r].ctx);
}

static inline void all_well(const rank_job *jobs, int n)
{
    for (int r = 0; r < n; r++)
        if (!CHECK_EQ(jobs[r].status, MLC_OK)) CHECK_STR(jobs[r].message, "");
}
#endif

#endif

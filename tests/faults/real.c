/* real.c -- saving on systems that really refuse: full, too small, read-only; killed, side by side
 *
 * Linked into the program of io.c. What this user may not set up (a file system of its own needs
 * root) is skipped with a line that says so.
 */
#define _GNU_SOURCE
#include "../watch.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

typedef mlc_status (*save_fn)(mlc_tensor *t, const char *path);

static mlc_status save_safetensors(mlc_tensor *t, const char *path)
{
    const mlc_named list = {"t", t};
    return mlc_safetensors_save(t->ctx, path, &list, 1, NULL);
}

static mlc_status save_npz(mlc_tensor *t, const char *path)
{
    const mlc_named list = {"t", t};
    return mlc_npz_save(t->ctx, path, &list, 1);
}

static mlc_status save_csv(mlc_tensor *t, const char *path) { return mlc_csv_save(t, path, NULL); }

/* x times a constant, which is in the file. */
static mlc_status times(mlc_ctx *ctx, void *user, mlc_tensor *const *in, int32_t n_in,
                        mlc_tensor **out, int32_t n_out)
{
    static const float zeros[1 << 16] = {0};
    (void)user;
    (void)n_in;
    (void)n_out;
    out[0] = mlc_mul(in[0], mlc_from(ctx, MLC_F32, mlc_dims1(mlc_numel(in[0])), zeros));
    return mlc_ctx_status(ctx);
}

/* On a device, which has no plans, another file. */
static mlc_status save_onnx(mlc_tensor *t, const char *path)
{
    if (!mlc_ctx_on_host(t->ctx)) return save_safetensors(t, path);
    mlc_plan        *p = mlc_plan_capture_fn(t->ctx, times, NULL, &t, 1, NULL);
    const mlc_status st = p != NULL ? mlc_onnx_save(p, path, NULL) : mlc_ctx_status(t->ctx);
    mlc_plan_free(p);
    return st;
}

static const save_fn savers[] = {save_safetensors, mlc_npy_save, save_npz, save_csv, mlc_idx_save,
                                 save_onnx};
#define SAVERS ((int)(sizeof savers / sizeof *savers))

static mlc_ctx *serial_ctx(void)       /* its threads would not live in a child                */
{
    mlc_ctx_desc d = test_desc();
    d.threads = 1;
    return test_own(mlc_ctx_create(&d));
}

/* The save fails for this reason, the file and its folder stay as they are.                    */
static void check_refused(save_fn save, mlc_tensor *t, const box *b, const char *why)
{
    const uint64_t before = hash_file(1, b->path);
    const int      files = box_count(b);
    CHECK_EQ(save(t, b->path), MLC_ERR_IO);
    CHECK_HAS(mlc_error(t->ctx), b->path);
    CHECK_HAS(mlc_error(t->ctx), why);
    CHECK_STATUS(t->ctx, MLC_ERR_IO);
    CHECK(hash_file(1, b->path) == before);
    CHECK_EQ(box_count(b), files);
}

TEST(iofaults, a_limit_on_the_size_of_files_is_an_error_and_the_old_one_stays)
{
    static const rlim_t limits[] = {0, 1, 8, 100, 4096, 65537};
    mlc_ctx      *ctx = serial_ctx();
    box           b = box_open_fast("out");
    mlc_tensor   *t = mlc_zeros(ctx, MLC_F32, mlc_dims1(50000));
    struct rlimit old, tight;
    void        (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < SAVERS; i++) {
        CHECK_EQ(savers[i](mlc_slice(t, 0, 0, 3, 1), b.path), MLC_OK);
        for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
            fflush(NULL);
            getrlimit(RLIMIT_FSIZE, &old);
            tight = old;
            tight.rlim_cur = limits[k];
            setrlimit(RLIMIT_FSIZE, &tight);
            check_refused(savers[i], t, &b, "File too large");
            setrlimit(RLIMIT_FSIZE, &old);
        }
        CHECK_EQ(savers[i](t, b.path), MLC_OK);
    }
    signal(SIGXFSZ, handler);
    box_close(&b);
}

/* 64 KiB: the old file fits, the new one beside it does not.                                   */
TEST(iofaults, a_full_disk_is_an_error_and_the_old_file_stays)
{
    mlc_ctx    *ctx = serial_ctx();
    box         b = box_open("out");
    mlc_tensor *t = mlc_zeros(ctx, MLC_F32, mlc_dims1(40000));
    if (mount("mlcore", b.dir, "tmpfs", 0, "size=64k") != 0) {
        printf("skipped: no small tmpfs for a full disk: %s\n", strerror(errno));
        CHECK(errno == EPERM || errno == EACCES || errno == ENODEV);
        box_close(&b);
        return;
    }
    for (int i = 0; i < SAVERS; i++) {
        CHECK_EQ(savers[i](mlc_slice(t, 0, 0, 3000, 1), b.path), MLC_OK);
        check_refused(savers[i], t, &b, "No space left on device");
        CHECK_EQ(savers[i](mlc_slice(t, 0, 0, 2000, 1), b.path), MLC_OK);
    }
    CHECK_EQ(umount(b.dir), 0);
    box_close(&b);
}

/* Runs the check as a user who is not root; the child's failures are the test's.               */
static void as_nobody(void (*run)(mlc_ctx *, const box *), mlc_ctx *ctx, const box *b)
{
    int status = 1;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const int64_t before = test_failures();
        if (geteuid() == 0 && (setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0))
            _exit(2);
        run(ctx, b);
        fflush(NULL);
        _exit(test_failures() > before);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void save_refused(mlc_ctx *ctx, const box *b)
{
    for (int i = 0; i < SAVERS; i++)
        check_refused(savers[i], mlc_zeros(ctx, MLC_F32, mlc_dims1(3)), b, "Permission denied");
}

static void load_refused(mlc_ctx *ctx, const box *b)
{
    CHECK(mlc_npy_load(ctx, b->path) == NULL);
    CHECK_HAS(mlc_error(ctx), b->path);
    CHECK_HAS(mlc_error(ctx), "Permission denied");
    CHECK_STATUS(ctx, MLC_ERR_IO);
}

static void save_unlisted(mlc_ctx *ctx, const box *b)
{
    CHECK_EQ(mlc_npy_save(mlc_zeros(ctx, MLC_F32, mlc_dims1(3)), b->path), MLC_OK);
}

TEST(iofaults, rights_that_are_missing_are_errors_and_change_nothing)
{
    mlc_ctx *ctx = serial_ctx();
    box      b = box_open_fast("out");
    if (!test_on_host()) {             /* whose memory a child would share                     */
        CHECK_EQ(rmdir(b.dir), 0);
        return;
    }
    CHECK(put_file(b.path, "old", 3));
    CHECK_EQ(chmod(b.path, 0644), 0);
    CHECK_EQ(chmod(b.dir, 0555), 0);   /* may not be written                                   */
    as_nobody(save_refused, ctx, &b);
    CHECK_EQ(chmod(b.path, 0), 0);     /* may not be read                                      */
    as_nobody(load_refused, ctx, &b);
    CHECK_EQ(chmod(b.dir, 0333), 0);   /* may be written, but not listed nor synced            */
    as_nobody(save_unlisted, ctx, &b);
    CHECK_EQ(chmod(b.dir, 0700), 0);
    CHECK_EQ(box_count(&b), 1);
    CHECK(mlc_npy_load(ctx, b.path) != NULL);
    CHECK_OK(ctx);
    box_close(&b);
}

/* ---- several at a time, and killed ---------------------------------------------------------- */

/* Contents that differ everywhere and are of several pages: a mix would be found.              */
static mlc_tensor *contents(mlc_ctx *ctx, int which)
{
    return mlc_full(ctx, MLC_F32, mlc_dims1(3000 + 1000 * which), which);
}

static uint64_t hash_of(mlc_ctx *ctx, const box *b, int which)
{
    CHECK_EQ(save_safetensors(contents(ctx, which), b->path), MLC_OK);
    return hash_file(1, b->path);
}

/* A child saves one contents after the other until it is killed, at any moment.                */
TEST(iofaults, a_thousand_saves_that_are_killed_leave_whole_files)
{
    mlc_ctx       *ctx = serial_ctx();
    box            b = box_open_fast("out");
    mlc_tensor    *a[2] = {contents(ctx, 0), contents(ctx, 1)};
    const uint64_t want[2] = {hash_of(ctx, &b, 0), hash_of(ctx, &b, 1)};
    int            seen[2] = {0, 0}, stale = 0;
    for (int i = 0; test_on_host() && i < 1000; i++) {
        int status = 0;
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0)
            for (int k = i;; k++)
                if (save_safetensors(a[k % 2], b.path) != MLC_OK)
                    _exit(1);
        usleep((useconds_t)test_random(5, i, 0, 2000));
        kill(child, SIGKILL);
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status));    /* not an error of its own                              */
        const uint64_t h = hash_file(1, b.path);
        CHECK(h == want[0] || h == want[1]);
        seen[h == want[1]]++;
        const int files = box_count(&b);
        CHECK(files == 1 || files == 2);                   /* one killed save, whatever before */
        stale += files == 2;
    }
    if (test_on_host())
        printf("%d and %d files of each contents, %d times one that was not complete beside it\n",
               seen[0], seen[1], stale);
    CHECK_EQ(save_safetensors(a[0], b.path), MLC_OK);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

/* Each takes what the others have under way for the dead's, if locks do not say otherwise.     */
TEST(iofaults, saves_to_one_path_side_by_side_all_succeed)
{
    mlc_ctx    *ctx = serial_ctx();
    box         b = box_open_fast("out");
    mlc_tensor *a[4];
    uint64_t    want[4];
    pid_t       child[4];
    int         status = 0;
    for (int i = 0; i < 4; i++) {
        a[i] = contents(ctx, i);
        want[i] = hash_of(ctx, &b, i);
    }
    fflush(NULL);
    for (int i = 0; test_on_host() && i < 4; i++) {
        child[i] = fork();
        if (child[i] != 0)
            continue;
        for (int k = 0; k < 300; k++)
            if (save_safetensors(a[i], b.path) != MLC_OK) {
                printf("%s\n", mlc_error(ctx));
                fflush(NULL);
                _exit(1);
            }
        _exit(0);
    }
    for (int k = 0; k < 300; k++) {
        const uint64_t h = hash_file(1, b.path);
        CHECK(h == want[0] || h == want[1] || h == want[2] || h == want[3]);
    }
    for (int i = 0; test_on_host() && i < 4; i++) {
        CHECK_EQ(waitpid(child[i], &status, 0), child[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

TEST(iofaults, a_temporary_file_that_is_locked_is_left_alone)
{
    mlc_ctx    *ctx = serial_ctx();
    box         b = box_open_fast("out");
    mlc_tensor *t = contents(ctx, 0);
    char        temp[400];
    snprintf(temp, sizeof temp, "%s.mlc0.tmp", b.path);
    CHECK(put_file(temp, "other", 5));
    const int fd = open(temp, O_RDONLY);
    CHECK_EQ(flock(fd, LOCK_EX), 0);
    CHECK_EQ(save_safetensors(t, b.path), MLC_OK);
    CHECK_EQ(box_count(&b), 2);
    CHECK(hash_file(1, temp) == hash_bytes(1 * 31 + 2, "other", 5));
    CHECK_EQ(close(fd), 0);            /* its process is gone                                  */
    CHECK_EQ(save_safetensors(t, b.path), MLC_OK);
    CHECK_EQ(box_count(&b), 1);
    box_close(&b);
}

TEST(iofaults, a_hundred_names_that_are_taken_are_an_error)
{
    mlc_ctx *ctx = serial_ctx();
    box      b = box_open_fast("out");
    char     temp[400];
    for (int i = 0; i < 100; i++) {    /* folders: nobody's temporary files                    */
        snprintf(temp, sizeof temp, "%s.mlc%d.tmp", b.path, i);
        CHECK_EQ(mkdir(temp, 0700), 0);
    }
    check_refused(save_safetensors, contents(ctx, 0), &b, "there are 100 temporary files beside");
    CHECK_EQ(rmdir(temp), 0);
    CHECK_EQ(save_safetensors(contents(ctx, 0), b.path), MLC_OK);
    CHECK_EQ(box_count(&b), 100);
    box_close(&b);
}

static void save_at_root(mlc_ctx *ctx, const box *b)
{
    (void)b;
    CHECK_EQ(mlc_npy_save(mlc_zeros(ctx, MLC_F32, mlc_dims1(3)), "/out"), MLC_OK);
    CHECK_EQ(access("/out.mlc0.tmp", F_OK), -1);
}

/* The one folder whose name ends with a slash.                                                 */
TEST(iofaults, a_file_in_the_root_folder_is_saved)
{
    mlc_ctx *ctx = serial_ctx();
    box      b = box_open_fast("out");
    int      status = 1;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const int64_t before = test_failures();
        if (!test_on_host() || chroot(b.dir) != 0 || chdir("/") != 0)
            _exit(2);
        save_at_root(ctx, &b);
        fflush(NULL);
        _exit(test_failures() > before);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) != 1);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2 && test_on_host())
        printf("skipped: no chroot for a file in the root folder\n");
    else if (test_on_host())
        CHECK(mlc_npy_load(ctx, b.path) != NULL);
    CHECK_OK(ctx);
    box_close(&b);
}

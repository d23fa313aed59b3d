# mpi.sh BUILD RANKS -- examples/digits_mpi.c by threads and, where mpicc and mpirun are, by MPI, with
# RANKS ranks, which divide 96, and one: the losses are those of one rank to 1e-5. Runs in the top
# folder.
set -u
build=$1 ranks=$2 bad=0 mpicc=${MPICC:-mpicc} mpirun=${MPIRUN:-mpirun}

# compare NAME: the losses of $build/NAME.txt beside those of one rank.
compare() {
    paste "$build/mpi_one.txt" "$build/$1.txt" | awk -v name="$1" '
        /^epoch/ {d = $4 - $8; if (d < 0) d = -d; if (d > worst) worst = d; n++}
        END {printf "%s: %d epochs, losses within %.6f of one rank\n", name, n, worst
             exit n < 1 || worst > 1e-5}' || bad=1
    grep -q 'parameters the same in all' "$build/$1.txt" || { echo "$1: parameters differ"; bad=1; }
}

"$build/digits_mpi" --ranks 1 >"$build/mpi_one.txt" || exit 1
"$build/digits_mpi" --ranks "$ranks" >"$build/mpi_threads.txt" || exit 1
cat "$build/mpi_threads.txt"
compare mpi_threads
"$build/digits_mpi" --ranks "$ranks" --shard 2 >"$build/mpi_threads_shard.txt" || exit 1
compare mpi_threads_shard
if ! command -v "$mpicc" >/dev/null || ! command -v "$mpirun" >/dev/null; then
    echo 'MPI: there is no mpicc, it does not run'
    exit $bad
fi
printf '#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n' |
    "$mpicc" -std=c11 -O1 -DMLC_QUICK -DMLC_USE_MPI -I. -x c -c -o "$build/mpi_mlcore.o" - || exit 1
"$mpicc" -std=c11 -O1 -DMLC_USE_MPI -I. -o "$build/digits_mpi_ranks" examples/digits_mpi.c \
    "$build/mpi_mlcore.o" -lm -lpthread || exit 1
# Open MPI wants to be told of root and of more ranks than cores; MPICH takes neither word.
more=
"$mpirun" --version 2>/dev/null | grep -q 'Open MPI' && more='--allow-run-as-root --oversubscribe'
# shellcheck disable=SC2086
timeout 300 "$mpirun" $more -n "$ranks" "$build/digits_mpi_ranks" >"$build/mpi_ranks.txt" || exit 1
cat "$build/mpi_ranks.txt"
compare mpi_ranks
for shard in 1 2; do
    # shellcheck disable=SC2086
    timeout 300 "$mpirun" $more -n "$ranks" "$build/digits_mpi_ranks" --shard $shard \
        >"$build/mpi_ranks_shard.txt" || exit 1
    compare mpi_ranks_shard
done
exit $bad

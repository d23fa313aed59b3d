# mpi.sh BUILD RANKS -- examples/digits_mpi.c by threads and, where mpicc and mpirun are, by MPI, with
# RANKS ranks, which divide 96, and one: the losses are those of one rank to 1e-5, also with batch
# norms and dropout. Then ranks of MPI that are stopped, are killed, or differ: the others end with an
# error that names it, and the same command goes on from the last file with the same losses. Runs in
# the top folder.
set -u
build=$1 ranks=$2 bad=0 mpicc=${MPICC:-mpicc} mpirun=${MPIRUN:-mpirun}
wrong() { echo "$*"; bad=1; }

# compare NAME BASE: the losses of $build/NAME.txt beside those of one rank.
compare() {
    paste "$build/$2.txt" "$build/$1.txt" | awk -v name="$1" '
        /^epoch/ {d = $4 - $8; if (d < 0) d = -d; if (d > worst) worst = d; n++}
        END {printf "%s: %d epochs, losses within %.6f of one rank\n", name, n, worst
             exit n < 1 || worst > 1e-5}' || bad=1
    grep -q 'parameters the same in all' "$build/$1.txt" || wrong "$1: parameters differ"
}

"$build/digits_mpi" --ranks 1 >"$build/mpi_one.txt" || exit 1
"$build/digits_mpi" --ranks 1 --net cnn --epochs 3 >"$build/mpi_one_cnn.txt" || exit 1
"$build/digits_mpi" --ranks "$ranks" >"$build/mpi_threads.txt" || exit 1
"$build/digits_mpi" --ranks "$ranks" --net cnn --epochs 3 >"$build/mpi_threads_cnn.txt" || exit 1
cat "$build/mpi_threads.txt"
compare mpi_threads mpi_one
compare mpi_threads_cnn mpi_one_cnn
"$build/digits_mpi" --ranks "$ranks" --shard 2 >"$build/mpi_threads_shard.txt" || exit 1
compare mpi_threads_shard mpi_one
"$build/digits_mpi" --net rnn 2>/dev/null && wrong 'took --net rnn'
if ! command -v "$mpicc" >/dev/null || ! command -v "$mpirun" >/dev/null; then
    echo 'MPI: there is no mpicc, it does not run'
    exit $bad
fi
printf '#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n' |
    "$mpicc" -std=c11 -O1 -DMLC_QUICK -DMLC_USE_MPI -I. -x c -c -o "$build/mpi_mlcore.o" - || exit 1
"$mpicc" -std=c11 -O1 -DMLC_USE_MPI -I. -o "$build/digits_mpi_ranks" examples/digits_mpi.c \
    "$build/mpi_mlcore.o" -lm -lpthread || exit 1
# Open MPI wants to be told of root and of more ranks than cores, and ends all ranks by itself where
# one is killed. MPICH takes neither word, and goes on where it is told to and a shell stands between
# it and the rank; it tells the others by SIGUSR1, and UCX must not read the memory of other processes.
# What a rank says goes to a file of its own: mpirun may lose the last lines before an MPI_Abort.
# shellcheck disable=SC2016
to='2>"$errors.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"'
if "$mpirun" --version 2>/dev/null | grep -qE 'Open MPI|OpenRTE'; then
    more='--allow-run-as-root --oversubscribe' killed='' between="exec \"\$0\" \"\$@\" $to"
else
    more='' killed='-disable-auto-cleanup' between="trap '' USR1; \"\$0\" \"\$@\" $to; exit \$?"
fi
export errors=$build/mpi_fault.err
program=$(realpath "$build")/digits_mpi_ranks

# shellcheck disable=SC2086
by_mpi() { timeout 300 "$mpirun" $more -n "$ranks" "$program" "$@"; }

by_mpi >"$build/mpi_ranks.txt" || exit 1
by_mpi --net cnn --epochs 3 >"$build/mpi_ranks_cnn.txt" || exit 1
cat "$build/mpi_ranks.txt"
compare mpi_ranks mpi_one
compare mpi_ranks_cnn mpi_one_cnn
for shard in 1 2; do
    by_mpi --shard $shard >"$build/mpi_ranks_shard.txt" || exit 1
    compare mpi_ranks_shard mpi_one
done
[ "$ranks" -gt 1 ] || exit $bad

# pid_of RANK: the process of that rank.
pid_of() {
    for p in /proc/[0-9]*; do
        [ "$(readlink "$p/exe" 2>/dev/null)" = "$program" ] &&
            tr '\0' '\n' 2>/dev/null <"$p/environ" | grep -qxE "(OMPI_COMM_WORLD_RANK|PMI_RANK)=$1" &&
            echo "${p#/proc/}" && return 0
    done
    return 1
}

# fault NAME SIGNAL TEXT: rank 1 gets the signal while it trains; the others end with TEXT, and the
# training goes on as one that was not disturbed.
fault() {
    local name=$1 signal=$2 text=$3 from last state=$build/mpi_fault.state began took victim
    rm -f "$state" "$errors"*
    # shellcheck disable=SC2086
    UCX_TLS=tcp,self timeout 120 "$mpirun" $more $killed -n "$ranks" sh -c "$between" "$program" \
        --epochs 10000 --save "$state" --deadline 3 >"$build/mpi_fault.txt" 2>"$errors" &
    local job=$!
    for _ in $(seq 300); do [ -s "$state" ] && break; sleep 0.1; done
    sleep 0.5
    victim=$(pid_of 1)
    began=$SECONDS
    kill "-$signal" "$victim" || wrong "$name: there is no rank 1"
    wait "$job" && wrong "$name: it ended well"
    grep -q "$text" "$errors"* || { wrong "$name: no rank says '$text'"; cat "$errors"*; }
    took=$((SECONDS - began))           # 3 s, as many to hear of the others, and one to say it
    [ $took -le 20 ] || wrong "$name: it took $took s"
    last=$(awk '/^epoch/ {n = $2} END {print n + 2}' "$build/mpi_fault.txt")
    by_mpi --epochs "$last" --save "$state" >"$build/mpi_again.txt" || wrong "$name: it does not go on"
    by_mpi --epochs "$last" >"$build/mpi_whole.txt" || exit 1
    from=$(awk '/^epoch/ {print $2; exit}' "$build/mpi_again.txt")
    [ "${from:-1}" -gt 1 ] || wrong "$name: it begins anew"
    if [ "$(grep ^epoch "$build/mpi_again.txt")" = "$(awk -v f="${from:-1}" '/^epoch/ && $2 >= f' "$build/mpi_whole.txt")" ]; then
        echo "$name: ended after $took s, goes on at epoch $from with the same losses"
    else
        wrong "$name: other losses after epoch $from"
    fi
}

fault stopped STOP 'rank 1 has not come, or is gone'
if [ -n "$killed" ]; then fault killed KILL 'rank 1 has not come, or is gone'
else fault killed KILL 'signal 9'; fi           # what Open MPI's mpirun says

rm -f "$errors"*
# shellcheck disable=SC2086
timeout 60 "$mpirun" $more -n 1 sh -c "$between" "$program" --deadline 5 : \
    -n 1 sh -c "$between" "$program" --deadline 5 --hidden 64 >/dev/null 2>"$errors" &&
    wrong 'differing ranks: they ended well'
if grep -q 'rank 1 has another network' "$errors"*; then echo 'differing ranks: named'
else wrong 'differing ranks: no rank says which one differs'; cat "$errors"*; fi
exit $bad

# gate.sh -- clones HEAD into an empty folder and runs .ci/run there. If it is green, HEAD's hash is
# written to the file `gate` in the git folder; the folder is left for its logs if it is not.
head=$(git rev-parse HEAD) || exit 1
to=$(mktemp -d)/mlcore
git clone -q . "$to" && git -C "$to" checkout -q "$head" || exit 1
unset MAKEFLAGS MAKELEVEL MLC_BUILD_CONFIG CC CXX CPPFLAGS CFLAGS LDFLAGS BLAS
if CI=true bash "$to/.ci/run" </dev/null; then
    echo "$head" >"$(git rev-parse --git-dir)/gate"
    rm -rf "${to%/mlcore}"
else
    echo "logs: $to/build-ci"
    exit 1
fi

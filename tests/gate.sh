# gate.sh -- clones HEAD into an empty folder and runs .ci/run there. If it is green, HEAD's hash is
# written to the file `gate` in the git folder; the folder is left for its logs if it is not.
head=$(git rev-parse HEAD) && git=$(git rev-parse --absolute-git-dir) || exit 1
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
to=$(mktemp -d)/mlcore
git clone -q . "$to" && git -C "$to" checkout -q "$head" || exit 1
# Nothing that was given to make, or stands in the environment, makes the gate narrower.
unset MAKEFLAGS MAKELEVEL MLC_BUILD_CONFIG CC CXX CPPFLAGS CFLAGS LDFLAGS BLAS FILTER SAN \
    IMPL_FLAGS PARTS IMPL CASE JSON PREFIX INCLUDEDIR DESTDIR ${!MLC_*}
if CI=true bash "$to/.ci/run" </dev/null; then
    echo "$head" >"$git/gate"
    rm -rf "${to%/mlcore}"
else
    echo "logs: $to/build-ci"
    exit 1
fi

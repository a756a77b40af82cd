#!/bin/sh
# Builds and validates all packages of a workspace, on any CI server: `sh build.sh [REVISION]`.
#
# Keep the folder .store between runs, also of a failed run, by whatever cache the server has: results
# in it are named by their content and hashed when they are read, so an old or a foreign one is only
# slower. PTE_PIPELINE_STORE_SIZE limits it, here to 2 GB: what was not used for longest is left out.
# Publish build/ as the artifact, also of a failed run. With a REVISION, such as the branch that a
# change goes to, what the change does to the packages is in build/diff.md; that takes the whole
# history (`fetch-depth: 0`, `GIT_DEPTH: 0`).
set -u
PTE_PIPELINE_STORE="${PTE_PIPELINE_STORE:-$PWD/.store}"
PTE_PIPELINE_STORE_SIZE="${PTE_PIPELINE_STORE_SIZE:-2GB}"
export PTE_PIPELINE_STORE PTE_PIPELINE_STORE_SIZE

status=0 compared=0
doit || status=$?
if [ -n "${1:-}" ]; then
    doit diff "$1" --markdown > build/diff.md || compared=$?
fi
doit cache gc || compared=$?
[ "$status" -ne 0 ] || status=$compared
exit "$status"

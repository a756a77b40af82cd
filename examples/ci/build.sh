#!/bin/sh
# Builds and validates all packages of a workspace, on any CI server: `sh build.sh [REVISION]`.
#
# Keep the folder .store between runs, by whatever cache the server has: results in it are named by
# their content and hashed when they are read, so an old or a foreign one is only slower. Publish
# build/ as the artifact, also of a failed run. With a REVISION, such as the branch that a change
# goes to, what the change does to the packages is in build/diff.md; that takes the whole history
# (`fetch-depth: 0`, `GIT_DEPTH: 0`).
set -u
PTE_PIPELINE_STORE="${PTE_PIPELINE_STORE:-$PWD/.store}"
export PTE_PIPELINE_STORE

status=0 compared=0
doit || status=$?
if [ -n "${1:-}" ]; then
    doit diff "$1" --markdown > build/diff.md || compared=$?
fi
[ "$status" -ne 0 ] || status=$compared
exit "$status"

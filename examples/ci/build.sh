#!/bin/sh
# Builds and validates all packages of a workspace, on any CI server: `sh build.sh [REVISION]`.
#
# Use the server's cache to keep the folder .store between runs, even failed ones. Results in it are
# named by their content and hashed when they are read, so an outdated store only makes the build
# slower. PTE_PIPELINE_STORE_SIZE limits its size, here to 2 GB, by evicting the least recently used
# entries. Publish build/ as the artifact, even after a failed run. If you pass a REVISION, such as
# the target branch of a change, build/diff.md shows how the change affects the packages. This
# requires the whole history (`fetch-depth: 0`, `GIT_DEPTH: 0`).
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

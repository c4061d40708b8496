#!/bin/sh
# Repeats the comparison and prints, per store and thread count, the median and the range of every figure.
# usage: run.sh DIR [REPEATS [INODES]]; DIR is on the disk to measure, its content is replaced.
set -eu
dir=$1/nacre-bench-kv repeats=${2:-3} inodes=${3:-1000000}
cd "$(dirname "$0")"
cargo build --release
bench=${CARGO_TARGET_DIR:-target}/release/nacre-bench-kv
results=$(mktemp)
trap 'rm -rf "$dir" "$results"' EXIT
for repeat in $(seq "$repeats"); do
    for threads in 1 2; do
        for store in nacre fjall rocksdb lmdb-nosync lmdb-group; do
            rm -rf "$dir"
            "$bench" "$store" create "$dir" "$threads" "$inodes" >>"$results" 2>/dev/null
            # What the open group of lmdb-group held is lost, so reading would miss entries; LMDB reads as in lmdb-nosync.
            [ "$store" = lmdb-group ] || "$bench" "$store" read "$dir" "$threads" "$inodes" >>"$results" 2>/dev/null
        done
    done
done
python3 summary.py "$results"

"""Prints median [least-greatest] of each figure in a file of JSON lines, per store, phase and thread count."""

import collections
import json
import statistics
import sys

figures = collections.defaultdict(list)
with open(sys.argv[1]) as lines:
    for line in lines:
        result = json.loads(line)
        run = result.pop("store"), result.pop("phase"), result.pop("threads")
        for name, value in result.items():
            figures[run + (name,)].append(value)
for run, values in sorted(figures.items(), key=lambda item: (item[0][1], item[0][3], item[0][2], item[0][0])):
    store, phase, threads, name = run
    print(f"{phase:7} {name:26} {threads} thr {store:12} {statistics.median(values):>12,} [{min(values):,}-{max(values):,}]")

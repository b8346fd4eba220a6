#!/usr/bin/env bash
# demo.sh COPPICE: text from the small model three ways, the same tokens each time, and a look at the trees.
set -euo pipefail
coppice=$1
prompt='class Stack:
    def __init__(self):'
echo "The first trees of a generation (*: accepted):"
"$coppice" generate models/tiny-k2 --drafter models/tiny-k2-dflash --ddtree-budget 16 --prompt "$prompt" \
  --max-tokens 96 --trace-tree 2 --stats

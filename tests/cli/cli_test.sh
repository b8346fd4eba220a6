#!/usr/bin/env bash
# cli_test.sh COPPICE: the binary as a user meets it: exit codes, one line per fault, what it links, three equal generations.
set -uo pipefail
coppice=$1
cd "$(dirname "$0")/../.."
faults=0

# expect CODE WORDS ARGS...: the exit code, and one line on stderr holding the words.
expect() {
  local code=$1 words=$2 text status
  shift 2
  text=$("$coppice" "$@" 2>&1 >/dev/null </dev/null)
  status=$?
  if [[ $status -ne $code || "$text" != *"$words"* || $(grep -c '^coppice: ' <<< "$text") -ne 1 ]]; then
    echo "coppice $*: exit $status (expected $code), said: $text"
    faults=$((faults + 1))
  fi
}

expect 4 "no/such/model" generate no/such/model --prompt x
expect 2 "--ddtree-budget" generate models/tiny-k2 --ddtree-budget many --prompt x
expect 2 "--stats" generate models/tiny-k2 --prompt x --stats
expect 2 "device" generate models/tiny-k2 --device abacus --prompt x
expect 2 "temperature" generate models/tiny-k2 --temperature -1 --prompt x --quiet

# A path that is no model: absent, not a model, incomplete. Nothing is opened that could block.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/empty" "$scratch/weights"
echo x > "$scratch/file"
mkfifo "$scratch/fifo"
ln -s /nonexistent "$scratch/dangling"
cp -r models/tiny-k2/. "$scratch/weights"
chmod -R u+w "$scratch"
rm "$scratch/weights/"*.safetensors
for verb in generate inspect; do
  expect 4 "no such file" $verb "$scratch/missing"
  expect 4 "no such file" $verb "$scratch/dangling"
  expect 4 "$scratch/empty" $verb "$scratch/empty"
  expect 3 "neither a" $verb "$scratch/file"
  expect 3 "neither a" $verb "$scratch/fifo"
  expect 3 "neither a" $verb /dev/zero
  expect 4 "$scratch/weights" $verb "$scratch/weights"
done
mkdir "$scratch/weights/model.safetensors"
expect 3 "model.safetensors: not a regular file but a directory" generate "$scratch/weights" --prompt x
rm "$scratch/weights/config.json"
expect 4 "config.json" generate "$scratch/weights" --prompt x

stats=$("$coppice" generate models/tiny-k2 --drafter models/tiny-k2-dflash --ddtree-budget 16 --quiet --max-tokens 64 \
  --prompt $'class Stack:\n    def __init__(self):' --stats --trace-tree 1)
if [[ $? -ne 0 || $(grep -c ' identical$' <<< "$stats") -ne 3 || "$stats" != *"round at position"* ]]; then
  echo "generate --stats: not three identical outputs and a tree:"
  echo "$stats"
  faults=$((faults + 1))
fi
chain=$(awk '/^DFlash chain/ {print $5}' <<< "$stats")
tree=$(awk '/^DDTree/ {print $4}' <<< "$stats")
awk -v chain="$chain" -v tree="$tree" 'BEGIN {exit !(tree > chain)}' || {
  echo "generate --stats: $tree tokens a round by tree, $chain by chain"
  faults=$((faults + 1))
}

# The binary copies to any machine with glibc and libstdc++ (sanitizer builds link their run time).
if [[ "${2:-}" != sanitized ]]; then
  foreign=$(ldd "$coppice" | awk '{print $1}' |
    grep -vE '^(linux-vdso|libstdc\+\+|libm|libc|libgcc_s|libpthread|libdl|librt|/lib.*/ld-linux)' || true)
  if [[ -n "$foreign" ]]; then
    echo "ldd: depends on more than glibc and libstdc++: $foreign"
    faults=$((faults + 1))
  fi
fi

echo "cli: $faults faults"
exit $((faults > 0))

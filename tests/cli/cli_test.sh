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
  text=$(timeout 60 "$coppice" "$@" 2>&1 >/dev/null </dev/null)  # a server that starts is a fault too
  status=$?
  if [[ $status -ne $code || "$text" != *"$words"* || $(grep -c '^coppice: ' <<< "$text") -ne 1 ]]; then
    echo "coppice $*: exit $status (expected $code), said: $text"
    faults=$((faults + 1))
  fi
}

# The same where nothing was done before: what cannot be written is found first, and is all there is.
expect_first() {
  local text
  expect "$@"
  shift 2
  text=$(timeout 60 "$coppice" "$@" 2>&1 </dev/null)
  if [[ $(wc -l <<< "$text") -ne 1 ]]; then
    echo "coppice $*: did something first: $text"
    faults=$((faults + 1))
  fi
}

expect 4 "no/such/model" generate no/such/model --prompt x
expect 2 "--ddtree-budget" generate models/tiny-k2 --ddtree-budget many --prompt x
expect 2 "--stats" generate models/tiny-k2 --prompt x --stats
expect 2 "device" generate models/tiny-k2 --device abacus --prompt x
for verb in serve generate chat top 'bench serve' 'bench sweep' 'bench latency' 'bench throughput' bench 'bench kernels' 'bench round' \
    inspect plan quantize repack run-batch; do
  expect 2 "" $verb --no-such-flag
done
expect 2 "temperature" generate models/tiny-k2 --temperature -1 --prompt x --quiet

# What is wrong with a command line, in every verb that reads one.
expect 2 "model" generate
expect 2 "subcommand" bench
expect 2 "--input-file" run-batch
expect 2 "required" inspect
expect 2 "required" quantize
expect 2 "did you mean --prompt" generate models/tiny-k2 --promt x
expect 2 "unknown flag --bogus" plan models/tiny-k2 --bogus
expect 2 "--max-tokens" chat models/tiny-k2 --max-tokens nan
expect 2 "--max-tokens" generate models/tiny-k2 --max-tokens 5 --max-tokens 6 --prompt x
expect 2 "--seed: 9223372036854775808 does not fit" generate models/tiny-k2 --seed 9223372036854775808 --prompt x
expect 2 "did you mean --out" repack --uot
expect 2 "--threads: not together with --url" run-batch -i "$0" -o /dev/null --url http://127.0.0.1:1 --threads 2
expect 2 "--config" serve models/tiny-k2 --config
expect 2 "excludes" generate models/tiny-k2 --prompt x --prompt-file README.md
expect 2 "--trace-tree" generate models/tiny-k2 --prompt x --trace-tree -1
expect 2 "--interval" top --interval -1
expect 7 "127.0.0.1:1" top http://127.0.0.1:1
expect 3 "--prompt-file /tmp: cannot be read: Is a directory" generate models/tiny-k2 --prompt-file /tmp
expect 3 "/tmp: cannot be read" run-batch -i /tmp -o /dev/null --url http://127.0.0.1:1
expect 3 "--config /tmp: cannot be read" serve models/tiny-k2 --config /tmp
expect 4 "--config /no/such: cannot be read" serve models/tiny-k2 --config /no/such
expect 2 "--api-key is empty" serve models/tiny-k2 --api-key ""
expect 2 "--served-model-name is empty" serve models/tiny-k2 --served-model-name ""
expect 2 "--max-queued-requests" serve models/tiny-k2 --max-queued-requests -1
expect 2 "--shutdown-timeout" serve models/tiny-k2 --shutdown-timeout -1
expect 2 "--gpu-memory-utilization" serve models/tiny-k2 --gpu-memory-utilization nan
expect 2 "--stuck-after" serve models/tiny-k2 --stuck-after nan
expect 2 "--seed" serve models/tiny-k2 --seed 99999999999999999999
expect 2 "--dtype" serve models/tiny-k2 --dtype float8
expect 2 "--port" serve models/tiny-k2 --port 0 --port x

# Keys that nobody reads, in everything that a user writes as JSON or YAML.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for verb in generate chat serve 'bench latency' 'bench throughput'; do
  expect 2 "'num_speculative_token': unknown; there are method, model, num_speculative_tokens" $verb models/tiny-k2 \
    --speculative-config '{"model": "models/tiny-k2-dflash", "num_speculative_token": 5}'
done
expect 2 "'ddtree_size': says again what 'ddtree_budget'" generate models/tiny-k2 --prompt x \
  --speculative-config '{"model": "models/tiny-k2-dflash", "ddtree_budget": 5, "ddtree_size": 6}'
expect 2 "expected an object" generate models/tiny-k2 --prompt x --speculative-config '[]'
expect 2 "'temprature': unknown; there are temperature" serve models/tiny-k2 --port 0 --quiet --log-level error \
  --override-generation-config '{"temprature": 1}'
echo 'max_num_seq: 4' > "$scratch/unknown.yaml"
expect 2 "unknown.yaml: unknown key 'max-num-seq'; did you mean --max-num-seqs?" serve models/tiny-k2 --config "$scratch/unknown.yaml"
echo 'enable-log-requests: 5' > "$scratch/switch.yaml"
expect 2 "switch.yaml: key 'enable-log-requests': '5' is not true or false" serve models/tiny-k2 --config "$scratch/switch.yaml"
expect 2 "--served-model-name: needs a value, but the flag --api-key follows" serve models/tiny-k2 --served-model-name --api-key x
expect 2 "--prompt: needs a value, but the flag --stats follows" generate models/tiny-k2 --prompt --stats
expect 2 "--label: needs a value" bench serve --label --save-result
printf 'port: 1\nport: 2\n' > "$scratch/twice.yaml"
expect 3 "twice.yaml: line 2: the key 'port' is there twice" serve models/tiny-k2 --config "$scratch/twice.yaml"
echo '{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}, "bdoy": {}}' > "$scratch/lines"
expect 2 "lines line 1: field 'bdoy': unknown; there are custom_id" run-batch -i "$scratch/lines" -o /dev/null --url http://127.0.0.1:1
cp "$scratch/lines" "$scratch/kept"
expect 2 "is the file of requests" run-batch -i "$scratch/lines" -o "$scratch/../$(basename "$scratch")/lines" --url http://127.0.0.1:1
cmp "$scratch/lines" "$scratch/kept" || faults=$((faults + 1))
echo '{"peer": {}}' > "$scratch/peers"
expect 3 "peers: field 'peers': missing" bench kernels --filter rms --peers "$scratch/peers"
echo '{"peers": {"x": [{"name": "y"}]}}' > "$scratch/peers"
expect 3 "field 'peers.x[0].us': missing" bench kernels --filter rms --peers "$scratch/peers"
for verb in 'bench serve' 'bench sweep'; do
  expect 2 "--percentile-metrics topt: unknown" $verb --percentile-metrics topt --port 1
  expect 2 "--metadata a: must be" $verb --metadata a --port 1
  expect 2 "--extra-body: expected an object" $verb --extra-body '[1]' --port 1
done
expect 7 "--output-dir /dev/null/x: cannot be made" bench sweep --output-dir /dev/null/x --port 1

# Flags that would have no effect, and what no plan or benchmark could be of.
report=docs/results/data/2026-11-30-h200-planner-tiny.json
for flags in "--judge $report --json $scratch/plan.json" "--judge-memory $report --batch 2" "kimi-k2 --judge $report" \
  "--judge $report --judge-memory $report"; do
  expect 2 "not together with" plan $flags
done
expect 2 "name one file" plan kimi-k2 --json "$scratch/plan" --html "$scratch/plan"
expect 2 "--expert-overlap nan: 0 to 1" plan kimi-k2 --expert-overlap nan
expect 2 "--context 4097: the model's max_position_embeddings is 4096" plan models/tiny-k2 --context 4097
if [[ "$("$coppice" plan models/tiny-k2)" != *"context 4096"* ]]; then
  echo "plan models/tiny-k2: not at the positions that the model has"
  faults=$((faults + 1))
fi
expect 2 "'nosuch' matches no case" bench kernels --check-only --filter silu,nosuch
expect 2 "a part of it is empty" bench kernels --check-only --filter silu,

# Results that cannot be written, before the work that they are of.
mkdir -p "$scratch/sweep/results.csv" "$scratch/results"
for verb in "bench kernels --check-only" "bench round --tiny --layers 2 --rows 1 --repeats 1" "plan kimi-k2"; do
  expect_first 7 "--json /dev/null/x: cannot be written" $verb --json /dev/null/x
  expect_first 7 "--json $scratch/results: cannot be written" $verb --json "$scratch/results"
done
expect_first 7 "--html /dev/null/x: cannot be written" plan kimi-k2 --html /dev/null/x
for verb in 'bench latency' 'bench throughput'; do
  expect_first 7 "--output-json /dev/null/x: cannot be written" $verb models/tiny-k2 --output-json /dev/null/x
done
expect_first 7 "sweep/results.csv: cannot be written" bench sweep --output-dir "$scratch/sweep" --port 1
echo '{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}' > "$scratch/one"
expect_first 7 "/dev/null/x: cannot be written" run-batch -i "$scratch/one" -o /dev/null/x models/tiny-k2
ls "$scratch/sweep" | grep -v results.csv && faults=$((faults + 1))  # nothing was left there

for flag in --context --rows --batch; do
  expect 2 "$flag" bench round --tiny $flag -1
  expect 2 "$flag" bench round --tiny $flag 99999999999
done

printf 'version https://git-lfs.github.com/spec/v1\n' > "$scratch/pointer"
printf '\377\376' > "$scratch/bytes"
expect 3 "pointer: not a template but a Git LFS pointer" serve models/tiny-k2 --port 0 --quiet --chat-template "$scratch/pointer"
expect 3 "bytes: not a template but bytes" serve models/tiny-k2 --port 0 --quiet --chat-template "$scratch/bytes"

# What the server finds while it loads ends it with the fault's own code.
for fault in "4 --chat-template:/no/such --chat-template /no/such" "3 --chat-template:/tmp --chat-template /tmp" \
  "2 temperature --override-generation-config {\"temperature\":-1}"; do
  read -r code words flag value <<< "$fault"
  expect "$code" "${words/:/ }" serve models/tiny-k2 --port 0 --quiet --log-level error $flag $value
done
expect 3 "README.md: neither" serve README.md --port 0 --quiet --log-level error

# The end of a text is shown although a stop string begins like it, and nothing is shown from a stop string on.
says() {
  "$coppice" generate models/tiny-k2 --chat --prompt "What is the capital of France?" --max-tokens 60 --quiet "$@" 2>&1 </dev/null
}
whole=$(says)
if [[ "$whole" != *"is Paris." || "$(says --stop ".zz")" != "$whole" || "$(says --stop " Paris.zz" " of F")" != *"the capital" ]]; then
  echo "stop strings: '$(says --stop ".zz")' and '$(says --stop " Paris.zz" " of F")' of '$whole'"
  faults=$((faults + 1))
fi

# A full disk, a closed output: what was printed is not there, and the exit code says so.
for output in /dev/full closed; do
  for verb in "inspect models/tiny-k2" "generate models/tiny-k2 --prompt x --max-tokens 2 --quiet" --help; do
    if [[ $output == closed ]]; then
      text=$("$coppice" $verb 2>&1 >&- </dev/null)
    else
      text=$("$coppice" $verb 2>&1 >"$output" </dev/null)
    fi
    status=$?
    if [[ $status -ne 7 || "$text" != *"standard output could not be written"* ]]; then
      echo "coppice $verb with output $output: exit $status, said: $text"
      faults=$((faults + 1))
    fi
  done
done

# A path that is no model: absent, not a model, incomplete. Nothing is opened that could block.
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

# A format that is not run: its name, and which file to get instead.
rm -r "$scratch/weights/model.safetensors"
cp -r models/tiny-k2/. "$scratch/weights"
chmod -R u+w "$scratch"
sed -i 's/"pack-quantized"/"nvfp4-pack-quantized"/' "$scratch/weights/config.json"
for verb in generate inspect; do
  expect 5 "nvfp4-pack-quantized weights are not supported; get the INT4" $verb "$scratch/weights"
done

# Experts as the CUDA kernels read them: written once, listed, refused where something else computes.
if ! "$coppice" repack models/tiny-k2 --out "$scratch/repacked" --quiet > /dev/null ||
  ! "$coppice" inspect "$scratch/repacked" > /dev/null; then
  echo "repack models/tiny-k2: failed"
  faults=$((faults + 1))
fi
expect 5 "coppice_repack.json: field 'layout': cpu" generate "$scratch/repacked" --device cpu --prompt x --quiet
expect 5 "DFlashDraftModel" repack models/tiny-k2-dflash --out "$scratch/none" --quiet
expect 2 "is not an empty folder" repack models/tiny-k2 --out "$scratch/repacked" --quiet

# A hub id: what the local cache holds runs, for anything else one line says how to fetch it.
export HF_HOME=$scratch/hf
snapshots=$HF_HOME/hub/models--some--model/snapshots
mkdir -p "$snapshots" "$snapshots/../refs"
ln -s "$PWD/models/tiny-k2" "$snapshots/0123abc"
echo -n 0123abc > "$snapshots/../refs/main"
expect 4 "hf download moonshotai/Kimi-K2.6" generate moonshotai/Kimi-K2.6 --prompt x
by_id=$("$coppice" generate some/model --prompt 'def f' --max-tokens 4 --quiet) || by_id=failed
by_path=$("$coppice" generate models/tiny-k2 --prompt 'def f' --max-tokens 4 --quiet)
if [[ -z "$by_path" || "$by_id" != "$by_path" ]]; then
  echo "generate by hub id: '$by_id', by path: '$by_path'"
  faults=$((faults + 1))
fi

# A conversation of two questions, ended by an empty line.
answers=$(printf 'What is 2 + 3?\nAnd 4 + 4?\n\nnever read\n' |
  "$coppice" chat models/tiny-k2 --drafter models/tiny-k2-dflash --max-tokens 24 2> "$scratch/chat")
if [[ $? -ne 0 || -z "$answers" || $(grep -c 'tokens a round' "$scratch/chat") -ne 2 ]]; then
  echo "chat: $answers"
  cat "$scratch/chat"
  faults=$((faults + 1))
fi

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

# The drafter's YaRN amplitude can be set: other drafts, the same text.
louder=$("$coppice" generate models/tiny-k2 --ddtree-budget 16 --quiet --max-tokens 64 --stats \
  --prompt $'class Stack:\n    def __init__(self):' \
  --speculative-config '{"model": "models/tiny-k2-dflash", "draft_attention_factor": 2.5}')
if [[ $? -ne 0 || $(grep -c ' identical$' <<< "$louder") -ne 3 ||
  $(awk '/^DDTree/ {print $3}' <<< "$louder") -le $(awk '/^DDTree/ {print $3}' <<< "$stats") ]]; then
  echo "draft_attention_factor 2.5 costs no rounds:"
  echo "$louder"
  faults=$((faults + 1))
fi
expect 2 "draft_attention_factor is -1" generate models/tiny-k2 --drafter models/tiny-k2-dflash --draft-attention-factor -1

# Too little memory, wherever it is noticed first (sanitizers reserve terabytes of addresses).
if [[ "${2:-}" != sanitized ]]; then
  for kilobytes in 100000 200000; do
    text=$(ulimit -v $kilobytes; "$coppice" generate models/tiny-k2 --prompt x --quiet --threads 1 2>&1 >/dev/null)
    status=$?
    if [[ $status -ne 6 || $(grep -c '^coppice: .*\(memory\)' <<< "$text") -ne 1 ]]; then
      echo "generate in $kilobytes KB: exit $status, said: $text"
      faults=$((faults + 1))
    fi
  done
fi

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
